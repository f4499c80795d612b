// Package dynamicplugins is the registry of the plugins that a host can use: the instances of each plugin, which one is current, how to get
// a client for it, and a stream of changes.
//
// A plugin is identified by its type and name, and its instances by their AllocID. The newest instance is current; when it goes away, the
// newest remaining one becomes current in the same step. The registry is durable: an instance is on disk, through a StateStorage, before
// anyone can see it, and a change that cannot be saved does not take place, except a change of the order.
//
// The package follows the documentation of Nomad's client/dynamicplugins and keeps its names; additions are documented as such. It does not
// discover, start or probe plugins: its users do, and register them.
package dynamicplugins

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// Registry keeps the plugins that can be used. Its methods may be called at once from several goroutines. After Shutdown, and if
// the state could not be loaded, those that can fail return an error that matches ErrShutdown or ErrNotLoaded. It has the methods that
// Nomad's has and no others, so that what is made for that one fits; [Store] has more.
type Registry interface {
	// RegisterPlugin adds an instance, which becomes the current one of its type and name, and sends EventTypeRegistered. An
	// instance that is known (by AllocID) keeps its rank: with other details it is replaced and EventTypeUpdated is sent, with
	// the same details nothing happens, except that it is confirmed and reachable again. When RegisterPlugin returns nil, the
	// instance is saved.
	RegisterPlugin(info *PluginInfo) error

	// DeregisterPlugin removes an instance and sends EventTypeDeregistered. If it was the current one, the newest of those that
	// are left is current in the same step. What is not registered gives an error that matches ErrNotFound and no event.
	DeregisterPlugin(ptype, name, allocID string) error

	// WaitForPlugin returns the current instance of a plugin as soon as there is one that is not unreachable. When ctx
	// ends, the error is ctx.Err(), as with Nomad's: the caller says what it waited for.
	WaitForPlugin(ctx context.Context, ptype, name string) (*PluginInfo, error)

	// ListPlugins returns the newest instance of every plugin of the type, sorted by name.
	ListPlugins(ptype string) []*PluginInfo

	// PluginForAlloc returns any instance, current or not.
	PluginForAlloc(ptype, name, allocID string) (*PluginInfo, error)

	// DispensePlugin makes a client for the current instance with the dispenser of the type. Instances that are unreachable are
	// passed over; if no other is left, the error is an *UnreachableError.
	//
	// A PluginDispenser gets restored instances at once. For a ConnDispenser, DispensePlugin waits as Conn does, although it has no
	// context: until an instance is confirmed, at most for the timeout of WithConfirmTimeout, or while a process is replaced, at most as long
	// as the runtime gives its replacement (30 s).
	DispensePlugin(ptype, name string) (any, error)

	// PluginsUpdatedCh returns a channel of the events of one type, or of all types if it is empty, from now on and in order. It
	// is closed when ctx ends, and behind the last event after Shutdown. A subscriber may take its time; only if it leaves more than
	// 8,192 events unread are they replaced by one EventTypeResync.
	PluginsUpdatedCh(ctx context.Context, ptype string) <-chan *PluginUpdateEvent

	// Shutdown ends the registry: it waits for changes that are being saved, ends all event channels, closes the shared connections,
	// and ends calls on them. When it returns, the storage is not used any more. Calling it again has no effect.
	Shutdown()

	// StubDispenserForType replaces the dispenser of a type, for tests. A nil dispenser brings the original one back.
	StubDispenserForType(ptype string, dispenser PluginDispenser)
}

// Instance is one instance of a plugin and its state.
type Instance struct {
	Info  *PluginInfo
	State InstanceState

	// Reason is why the instance is unreachable, and Since the time when it became so; zero in other states.
	Reason error
	Since  time.Time
}

// InstanceState is the state of an instance.
type InstanceState string

const (
	// InstanceRegistered is the current instance.
	InstanceRegistered InstanceState = "registered"
	// InstanceSuperseded means that a newer instance is current.
	InstanceSuperseded InstanceState = "superseded"
	// InstanceRestored means that it was restored from the storage and is not confirmed yet.
	InstanceRestored InstanceState = "restored"
	// InstanceUnreachable means that it was marked as unreachable.
	InstanceUnreachable InstanceState = "unreachable"
)

// NewRegistry makes a registry with the state in the storage, which may be nil, and a dispenser for each plugin type. If the state
// cannot be loaded or a dispenser is nil, every method that can fail returns that error, nothing is saved, and the channels of subscribers
// are closed; Open returns the error instead.
func NewRegistry(state StateStorage, dispensers map[string]PluginDispenser) Registry {
	r := newRegistry(dispensers, nil)
	if r.unusable = cmp.Or(r.checkConfig(), r.load(state)); r.unusable != nil {
		r.feed.Close() // no event will ever come
	}
	return r
}

// Open is NewRegistry with options and an error. A nil option is an error.
func Open(state StateStorage, dispensers map[string]PluginDispenser, options ...Option) (*Store, error) {
	if slices.ContainsFunc(options, func(option Option) bool { return option == nil }) {
		return nil, errors.New("cannot open a registry: an option is nil; leave it out")
	}
	r := newRegistry(dispensers, options)
	if err := cmp.Or(r.checkConfig(), r.load(state)); err != nil {
		return nil, err
	}
	return r, nil
}
