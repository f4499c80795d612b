package dynamicplugins

import "github.com/patchbay-dev/patchbay/plugin"

// StateStorage keeps the registry's state over restarts of the host. Its methods may be called by several goroutines at once.
type StateStorage interface {
	// GetDynamicPluginRegistryState returns the state that was put last. Nil, and a state without plugins, is an empty one.
	GetDynamicPluginRegistryState() (*RegistryState, error)

	// PutDynamicPluginRegistryState replaces the state. When it returns nil, the state is durable; when it returns an error,
	// the state before is still the one that is kept. The registry does not change state afterwards, nor may the storage.
	PutDynamicPluginRegistryState(state *RegistryState) error
}

// ChangeStorage is an optional interface of a [StateStorage], with which the cost of a change does not grow with the number of plugins.
// The registry then calls PutDynamicPluginRegistryState no more.
type ChangeStorage interface {
	// PutDynamicPluginChange replaces what is stored for one type and name, with the same guarantee. Changes of different plugins come from
	// several goroutines at once and may become durable together; those of one plugin come one after the other.
	PutDynamicPluginChange(change *PluginChange) error
}

// BatchStorage is an optional interface of a [ChangeStorage], for many changes at once.
type BatchStorage interface {
	ChangeStorage

	// PutDynamicPluginChanges is PutDynamicPluginChange for changes of different plugins. It returns nil if all are durable, and otherwise
	// an error for each that is not, at its index.
	PutDynamicPluginChanges(changes []*PluginChange) []error
}

// PluginChange is the new state of one plugin.
type PluginChange struct {
	Type string
	Name string

	// Plugins are all instances, newest first. If there are none, nothing of the plugin need be stored.
	Plugins []*PluginInfo

	// Reservation, if it is not nil, replaces the stored reservation of the name; RegistryState.Reservations returns all. With a storage that
	// ignores it, reservations last only as long as the process.
	Reservation *plugin.Reservation
}
