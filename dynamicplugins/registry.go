// Package dynamicplugins is the registry of the plugins that a host can use: it lists the instances of each plugin, makes clients for the
// current one, and sends events of changes.
//
// A plugin is identified by its type and name, and its instances by their AllocID. The newest instance is current; when it is removed,
// the newest remaining one becomes current in the same step. An instance is saved in a StateStorage before it becomes visible, and a change
// that cannot be saved has no effect, except a change of the order.
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

// Registry has the plugins that can be used. It is safe for concurrent use. Methods that return an error match ErrShutdown after Shutdown,
// and ErrNotLoaded if the state could not be loaded. The interface has exactly the methods of Nomad's; [Store] has more.
type Registry interface {
	// RegisterPlugin adds an instance, which becomes the current one of its type and name, and sends EventTypeRegistered. An instance with a
	// known AllocID keeps its rank. If its details differ, it is replaced and EventTypeUpdated is sent; otherwise it is only confirmed and
	// reachable again. When RegisterPlugin returns nil, the instance is saved.
	RegisterPlugin(info *PluginInfo) error

	// DeregisterPlugin removes an instance and sends EventTypeDeregistered. If it was current, the newest remaining instance becomes current
	// in the same step. If it is not registered, no event is sent and the error matches ErrNotFound.
	DeregisterPlugin(ptype, name, allocID string) error

	// WaitForPlugin blocks until a plugin has a reachable instance, and returns the current one. When ctx ends, it returns ctx.Err(), as
	// Nomad's does, without the name of the plugin.
	WaitForPlugin(ctx context.Context, ptype, name string) (*PluginInfo, error)

	// ListPlugins returns the newest instance of every plugin of the type, sorted by name.
	ListPlugins(ptype string) []*PluginInfo

	// PluginForAlloc returns an instance, whether it is current or not.
	PluginForAlloc(ptype, name, allocID string) (*PluginInfo, error)

	// DispensePlugin calls the dispenser of the type for the newest reachable instance. If all are unreachable, the error is an
	// *UnreachableError.
	//
	// A PluginDispenser also gets instances that are restored and not confirmed. For a ConnDispenser, DispensePlugin blocks as Conn does,
	// until an instance is confirmed and while a process is being replaced, but at most 30 s, or for a longer timeout of
	// WithConfirmTimeout.
	DispensePlugin(ptype, name string) (any, error)

	// PluginsUpdatedCh returns a channel of all later events of a type, or of all types if it is empty, in order. The channel is closed when
	// ctx ends, and after the last event before Shutdown. If a subscriber leaves more than 8,192 events unread, one EventTypeResync replaces
	// them.
	PluginsUpdatedCh(ctx context.Context, ptype string) <-chan *PluginUpdateEvent

	// Shutdown waits for changes that are being saved, closes the channels of events and the shared connections, and ends calls on them. After
	// it has returned, the storage is not used. A second call has no effect.
	Shutdown()

	// StubDispenserForType replaces the dispenser of a type, for tests. A nil dispenser restores the original one.
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
	// InstanceUnreachable means that it must not be used at the moment; see Instance.Reason.
	InstanceUnreachable InstanceState = "unreachable"
)

// NewRegistry returns a registry with the state in the storage, which may be nil, and a dispenser for each plugin type. If the state cannot
// be loaded or a dispenser is nil, every method that returns an error returns that one, nothing is saved, and the channels of subscribers
// are closed. [Open] returns the error instead.
func NewRegistry(state StateStorage, dispensers map[string]PluginDispenser) Registry {
	r := newRegistry(dispensers, nil)
	if r.unusable = cmp.Or(r.checkConfig(), r.load(state)); r.unusable != nil {
		r.feed.Close() // there will be no events
	}
	return r
}

// Open is [NewRegistry] with options, which must not be nil, and an error.
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
