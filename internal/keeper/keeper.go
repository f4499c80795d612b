// Package keeper gives packages of this module the methods of a dynamicplugins.Store that only a pipeline needs: staged registrations,
// marks of instances, reserved names, and waiting for a replacement. Users of a Store do not see them, because they must be called in the
// order of a registration.
package keeper

import (
	"context"
	"net"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Keeper is implemented by every Store. P is *dynamicplugins.PluginInfo, which this package cannot import.
type Keeper[P any] interface {
	// StagePlugins saves instances without making them visible, which Staged.Publish does. They are saved together if the storage is a
	// dynamicplugins.BatchStorage. For each instance, staged or errs has the result, at its index. The infos must not be changed afterwards.
	//
	// Each instance, even a known one, is staged as the newest of its name: the last one that is staged and published becomes current. A
	// known one that becomes the newest is published with EventTypeUpdated. Staging an instance again cancels its earlier stage. If only the
	// position of a known instance changes and cannot be saved, that is not an error: it is saved with the next change of the plugin, and a
	// restart before that restores the former order.
	StagePlugins(infos []P) (staged []Staged, errs []error)
	// RestoredPlugins returns the instances that were restored from the storage and neither confirmed nor registered again, sorted by type and
	// name, newest first.
	RestoredPlugins() []P
	// ConfirmPlugin marks a restored or unreachable instance as alive. It sends no event. The error matches dynamicplugins.ErrNotFound for an
	// instance that is not registered.
	ConfirmPlugin(ptype, name, allocID string) error
	// MarkUnreachable marks an instance that must not be dispensed, with the reason. It stays registered, and is dispensed again when it is
	// confirmed or registered again. The mark is not saved and sends no event. The error matches dynamicplugins.ErrNotFound for an instance
	// that is not registered.
	MarkUnreachable(ptype, name, allocID string, reason error) error
	// CheckConns sets a check of each new shared connection, before anything is sent on it. If check returns an error, the connection is
	// closed and its calls fail with that error. It must be called before the Store makes connections.
	CheckConns(check func(info P, conn net.Conn) error)
	// Reservations returns the reservations that the storage held when the registry was opened, in no order.
	Reservations() []plugin.Reservation
	// Reserve records a reservation. It does not block: the reservation is saved with the next change of the name's plugins, or by
	// SaveReservation.
	Reserve(reservation plugin.Reservation)
	// SaveReservation saves the recorded reservation of a name, unless it is saved. With a storage that does not keep reservations it does
	// nothing. The error matches dynamicplugins.ErrNotSaved if the reservation could not be written.
	SaveReservation(name plugin.Name) error
	// Replacing announces that an instance of a plugin stops and another one replaces it: calls on shared connections that begin before ctx
	// ends wait for another instance. Calls in progress stay on their instance. If another instance is current, Replacing has no effect. It
	// does not block.
	Replacing(ctx context.Context, ptype, name, allocID string)
	// AwaitReplaced blocks as long as callers of a plugin wait for another instance; see Replacing. It fails when ctx ends, with an error that
	// wraps dynamicplugins.ErrNotConfirmed and ctx.Err(), and when the registry is shut down.
	AwaitReplaced(ctx context.Context, ptype, name string) error
	// WaitForConfirmedPlugin is WaitForPlugin, except that a restored instance does not count until it is confirmed or registered.
	WaitForConfirmedPlugin(ctx context.Context, ptype, name string) (P, error)
}

// Staged is an instance that is saved and not yet visible.
type Staged interface {
	// Publish makes the instance visible and sends its event. It has no effect after it was published or discarded, the same instance was
	// staged again or deregistered, or the registry was shut down.
	Publish()
	// Discard removes the instance from the storage, or restores the former details if it was registered before. If that cannot be saved, it
	// returns an error, and may be called again. It has no effect in the same cases as Publish.
	Discard() error
}

var of func(store any) any

// Register sets the function that returns the Keeper of a Store. Package dynamicplugins calls it when it is initialized.
func Register(f func(store any) any) bool { of = f; return true }

// Of returns the Keeper of a *dynamicplugins.Store.
func Of[P any](store any) Keeper[P] {
	k, _ := of(store).(Keeper[P]) // which it is: see package dynamicplugins
	return k
}
