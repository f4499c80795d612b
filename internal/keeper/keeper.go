// Package keeper gives packages of this module what a dynamicplugins.Store does for a pipeline: staged registrations, reserved names, and
// calls that wait for a replacement. These are methods of an unexported type, because their order matters and no user needs them.
//
// It holds no state: each Store implements it.
package keeper

import (
	"context"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Keeper is what a Store does for a pipeline. P is *dynamicplugins.PluginInfo, which this package cannot import.
type Keeper[P any] interface {
	// StagePlugins does the first half of a registration of several instances: each is saved but not yet visible. They are saved together as
	// far as the storage can do that: see dynamicplugins.BatchStorage. For each instance, staged or errs has the result, at its index.
	//
	// An instance is staged in front of all others of its name, even if it is known: the last one that is staged and published is the
	// current one. A known one that moves to the front is published with EventTypeUpdated. Staging an instance again makes its earlier stage
	// void. If the details of a known instance are the same and its new place cannot be saved, that is not an error: it is saved with the next
	// change of the plugin, and until then a restart restores the former order. An info must not be changed afterwards.
	StagePlugins(infos []P) (staged []Staged, errs []error)
	// RestoredPlugins returns the instances that were restored from the storage and neither confirmed nor registered again, sorted by type and
	// name, newest first.
	RestoredPlugins() []P
	// Reservations returns what the storage held when the registry was opened, in no order.
	Reservations() []plugin.Reservation
	// Reserve records a reservation. It does not block: the reservation is saved with the next change of the name's plugins, or by
	// SaveReservation.
	Reserve(reservation plugin.Reservation)
	// SaveReservation saves the recorded reservation of a name, unless it is saved. With a storage that does not keep reservations it does
	// nothing. The error matches dynamicplugins.ErrNotSaved if the reservation could not be written.
	SaveReservation(name plugin.Name) error
	// Replacing announces that an instance of a plugin stops and another takes its place: calls on shared connections that begin before ctx
	// ends wait for another instance. Calls in progress end where they are. If calls go to another instance already, it does nothing. It
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
	// Publish makes the instance visible and sends its event. It has no effect if the stage is void: because it was published or discarded,
	// the same instance was staged again or deregistered, or the registry was shut down.
	Publish()
	// Discard removes the instance from the storage; one that was registered before keeps its former details. If that cannot be saved, the
	// error says so and Discard may be called again. It has no effect on a stage that is void.
	Discard() error
}

var of func(store any) any

// Register sets the function that returns the Keeper of a Store. Package dynamicplugins calls it when it is initialized.
func Register(f func(store any) any) bool { of = f; return true }

// Of returns the Keeper of a *dynamicplugins.Store.
func Of[P any](store any) Keeper[P] {
	k, _ := of(store).(Keeper[P]) // it is one: see package dynamicplugins
	return k
}
