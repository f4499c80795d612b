package dynamicplugins

import (
	"context"
	"net"

	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Staged is an instance that is saved and not yet visible.
type Staged = keeper.Staged

// The methods of a Store that only other packages of this module need.

func (r *Store) StagePlugins(infos []*PluginInfo) ([]Staged, []error) {
	return storeKeeper{r}.StagePlugins(infos)
}

func (r *Store) ConfirmPlugin(ptype, name, allocID string) error {
	return storeKeeper{r}.ConfirmPlugin(ptype, name, allocID)
}

func (r *Store) MarkUnreachable(ptype, name, allocID string, reason error) error {
	return storeKeeper{r}.MarkUnreachable(ptype, name, allocID, reason)
}

// WithConnJudge calls CheckConns.
func WithConnJudge(check func(info *PluginInfo, conn net.Conn) error) Option {
	return func(r *Store) { storeKeeper{r}.CheckConns(check) }
}

func (r *Store) Reservations() []plugin.Reservation { return storeKeeper{r}.Reservations() }

func (r *Store) Reserve(reservation plugin.Reservation) { storeKeeper{r}.Reserve(reservation) }

func (r *Store) SaveReservation(name plugin.Name) error { return storeKeeper{r}.SaveReservation(name) }

func (r *Store) Replacing(ctx context.Context, ptype, name, allocID string) {
	storeKeeper{r}.Replacing(ctx, ptype, name, allocID)
}

func (r *Store) AwaitReplaced(ctx context.Context, ptype, name string) error {
	return storeKeeper{r}.AwaitReplaced(ctx, ptype, name)
}

func (r *Store) WaitForConfirmedPlugin(ctx context.Context, ptype, name string) (*PluginInfo, error) {
	return storeKeeper{r}.WaitForConfirmedPlugin(ctx, ptype, name)
}

func (r *Store) RestoredPlugins() []*PluginInfo { return storeKeeper{r}.RestoredPlugins() }

// StagePlugin is StagePlugins for one instance.
func (r *Store) StagePlugin(info *PluginInfo) (Staged, error) {
	staged, errs := r.StagePlugins([]*PluginInfo{info})
	return staged[0], errs[0]
}

// Awaited reports whether a caller waits for a plugin.
func (r *Store) Awaited(ptype, name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits[plugin.Name{Type: ptype, Name: name}] != nil
}
