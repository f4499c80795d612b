package dynamicplugins

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// Registry keeps the plugins that can be used. Its methods may be called at once from several goroutines. After Shutdown, and if
// the state could not be loaded, those that can fail return an error that matches ErrShutdown or ErrNotLoaded.
type Registry interface {
	// RegisterPlugin adds an instance, which becomes the current one of its type and name, and sends EventTypeRegistered. An
	// instance that is known (by AllocID) keeps its rank: with other details it is replaced and EventTypeUpdated is sent, with
	// the same details nothing happens, except that it is confirmed and reachable again. When RegisterPlugin returns nil, the
	// instance is saved.
	RegisterPlugin(info *PluginInfo) error

	// StagePlugin does the first half of a registration: the instance is saved, and nobody sees it. It is staged in front of all others
	// of its name, also if it is known: the last one that is staged and published is the current one. One that is known and comes in
	// front so is published with EventTypeUpdated. Staging an instance again makes its earlier stage void. If the details of one that is
	// known are the same and its new place cannot be saved, that is no error: it is saved with the next change of the plugin, and until then
	// a restart restores the former order.
	StagePlugin(info *PluginInfo) (Staged, error)

	// DeregisterPlugin removes an instance and sends EventTypeDeregistered. If it was the current one, the newest of those that
	// are left is current in the same step. What is not registered gives an error that matches ErrNotFound and no event.
	DeregisterPlugin(ptype, name, allocID string) error

	// ConfirmPlugin says that an instance that was restored or unreachable is alive. It sends no event.
	ConfirmPlugin(ptype, name, allocID string) error

	// MarkUnreachable says why an instance is not to be given out: most often, because it is dead. It stays registered, and is given out
	// again when it is registered again or confirmed. It is not saved and sends no event.
	MarkUnreachable(ptype, name, allocID string, reason error) error

	// ListPlugins returns the newest instance of every plugin of the type, sorted by name.
	ListPlugins(ptype string) []*PluginInfo

	// Instances returns all instances, sorted by type and name and newest first. The empty type means all types and the empty
	// name all names.
	Instances(ptype, name string) []Instance

	// RestoredPlugins returns the instances that were restored from the storage and neither confirmed nor registered again, in
	// the order of Instances.
	RestoredPlugins() []*PluginInfo

	// PluginForAlloc returns any instance, current or not.
	PluginForAlloc(ptype, name, allocID string) (*PluginInfo, error)

	// WaitForPlugin returns the current instance of a plugin as soon as there is one that is not unreachable. It fails when ctx
	// ends, with an error that wraps ctx.Err().
	WaitForPlugin(ctx context.Context, ptype, name string) (*PluginInfo, error)

	// WaitForConfirmedPlugin is WaitForPlugin for those who need to know that the plugin lives: a restored instance does not count until
	// it is confirmed or registered.
	WaitForConfirmedPlugin(ctx context.Context, ptype, name string) (*PluginInfo, error)

	// DispensePlugin makes a client for the current instance with the dispenser of the type. Instances that are unreachable are
	// passed over; if no other is left, the error is an *UnreachableError.
	//
	// A PluginDispenser gets restored instances at once. For a ConnDispenser, DispensePlugin waits until an instance is
	// confirmed, as Conn does.
	DispensePlugin(ptype, name string) (any, error)

	// Conn returns a connection to a plugin that all callers share. It belongs to the name, not to one instance: every call goes
	// to the instance that is current when the call begins, and ends on it. The connection to a superseded instance is closed
	// when the last call on it has ended, and one that is not used for a minute is closed until it is.
	//
	// An instance that was restored is not used until it is confirmed or registered. Conn, and every call, waits for that until ctx
	// ends and at most as long as WithConfirmTimeout says, and then fails with ErrNotConfirmed. It does not wait for plugins that
	// are not registered or not reachable.
	Conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error)

	// PluginsUpdatedCh returns a channel of the events of one type, or of all types if it is empty, from now on and in order. It
	// is closed when ctx ends and on Shutdown. A subscriber may take its time; only if it leaves more than 8,192 events unread are
	// they replaced by one EventTypeResync.
	PluginsUpdatedCh(ctx context.Context, ptype string) <-chan *PluginUpdateEvent

	// Watch is PluginsUpdatedCh together with all instances that there are at the moment, in the order of Instances: the events
	// follow on them without gap and without repeat.
	Watch(ctx context.Context, ptype string) ([]*PluginInfo, <-chan *PluginUpdateEvent)

	// Shutdown ends the registry: it waits for changes that are being saved, closes all event channels and shared connections,
	// and ends calls on them. When it returns, the storage is not used any more. Calling it again has no effect.
	Shutdown()

	// StubDispenserForType replaces the dispenser of a type, for tests. A nil dispenser brings the original one back.
	StubDispenserForType(ptype string, dispenser PluginDispenser)
}

// Staged is an instance that is saved and not yet visible.
type Staged interface {
	// Publish makes the instance visible and sends its event. It has no effect if the stage is void: because it was published
	// or discarded, the same instance was staged again or deregistered, or the registry was shut down.
	Publish()

	// Discard takes the instance off the storage again; one that was registered before keeps its former details. If that cannot
	// be saved, the error says so and Discard may be called again. It has no effect on a stage that is void.
	Discard() error
}

// Instance is one instance of a plugin and its state.
type Instance struct {
	Info  *PluginInfo
	State InstanceState

	// Reason and Since are those of MarkUnreachable, and not set in any other state.
	Reason error
	Since  time.Time
}

// InstanceState is the state of an instance.
type InstanceState string

const (
	// InstanceRegistered is the current instance.
	InstanceRegistered InstanceState = "registered"
	// InstanceSuperseded says that a newer instance is current.
	InstanceSuperseded InstanceState = "superseded"
	// InstanceRestored says that it was restored from the storage and not confirmed yet.
	InstanceRestored InstanceState = "restored"
	// InstanceUnreachable says that it was marked so.
	InstanceUnreachable InstanceState = "unreachable"
)

// NewRegistry makes a registry with the state in the storage, which may be nil, and a dispenser for each plugin type. If the state
// cannot be loaded, every method that can fail returns that error, nothing is saved, and the channels of subscribers are closed; Open
// returns the error.
func NewRegistry(state StateStorage, dispensers map[string]PluginDispenser) Registry {
	r := newRegistry(dispensers, nil)
	if r.unusable = r.load(state); r.unusable != nil {
		r.feed.Close() // no event will ever come
	}
	return r
}

// Open is NewRegistry with options and an error.
func Open(state StateStorage, dispensers map[string]PluginDispenser, options ...Option) (Registry, error) {
	r := newRegistry(dispensers, options)
	if err := r.load(state); err != nil {
		return nil, err
	}
	return r, nil
}
