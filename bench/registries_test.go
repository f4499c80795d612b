package bench

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/registry"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

// registries are the contestants that keep plugins, except the peers.
var registries = map[string]registry.Opener{
	"patchbay":         openPatchbay,
	"memory":           func(string) (registry.Subject, error) { return newMemory(), nil },
	"bbolt":            openBolt(0, (*bolt).update),
	"bbolt-group":      openBolt(0, (*bolt).group),
	"bbolt-batch50µs":  openBolt(50*time.Microsecond, (*bolt).batch),
	"bbolt-batch200µs": openBolt(200*time.Microsecond, (*bolt).batch),
	"bbolt-batch1ms":   openBolt(time.Millisecond, (*bolt).batch),
}

// patchbayRegistry is [dynamicplugins.Store] on a boltstate file, or in memory.
type patchbayRegistry struct {
	*dynamicplugins.Store
	state *boltstate.Store
}

func openPatchbay(dir string) (registry.Subject, error) {
	dispensers := map[string]dynamicplugins.PluginDispenser{
		registry.Type: func(info *dynamicplugins.PluginInfo) (any, error) { return info, nil },
	}
	if dir == "" {
		r, err := dynamicplugins.Open(nil, dispensers)
		return patchbayRegistry{Store: r}, err
	}
	state, err := boltstate.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return nil, err
	}
	r, err := dynamicplugins.Open(state, dispensers)
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	return patchbayRegistry{r, state}, nil
}

func (r patchbayRegistry) Register(i int) error {
	return r.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: registry.Type, Name: registry.Name(i), Version: registry.Version, AllocID: registry.AllocID(i), Options: registry.Options,
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: registry.SocketPath(i)},
	})
}

func (r patchbayRegistry) Deregister(i int) error {
	return r.DeregisterPlugin(registry.Type, registry.Name(i), registry.AllocID(i))
}

func (r patchbayRegistry) Dispense(name string) error {
	_, err := r.DispensePlugin(registry.Type, name)
	return err
}

func (r patchbayRegistry) Wait(ctx context.Context, i int) error {
	_, err := r.WaitForPlugin(ctx, registry.Type, registry.Name(i))
	return err
}

func (r patchbayRegistry) Subscribe(ctx context.Context, receive func()) {
	events := r.PluginsUpdatedCh(ctx, registry.Type)
	if receive == nil {
		return
	}
	go func() {
		for range events {
			receive()
		}
	}()
}

func (r patchbayRegistry) List() int { return len(r.ListPlugins(registry.Type)) }

func (r patchbayRegistry) Close() error {
	r.Shutdown()
	if r.state == nil {
		return nil
	}
	return r.state.Close()
}
