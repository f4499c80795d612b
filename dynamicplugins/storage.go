package dynamicplugins

import "github.com/patchbay-dev/patchbay/plugin"

// StateStorage stores the state of a registry across restarts of the host. It must be safe for concurrent use.
type StateStorage interface {
	// GetDynamicPluginRegistryState returns the state that was put last. Nil is an empty state.
	GetDynamicPluginRegistryState() (*RegistryState, error)

	// PutDynamicPluginRegistryState replaces the state. If it returns nil, the new state is durable; if it returns an error, the former state
	// is still stored. Neither the registry nor the storage may change state afterwards.
	PutDynamicPluginRegistryState(state *RegistryState) error
}

// ChangeStorage is an optional interface of a [StateStorage], with which the cost of a change does not grow with the number of plugins. The
// registry then does not call PutDynamicPluginRegistryState.
type ChangeStorage interface {
	// PutDynamicPluginChange replaces the stored instances of one type and name, with the same guarantee. It is called concurrently for
	// different plugins, and sequentially for each plugin.
	PutDynamicPluginChange(change *PluginChange) error
}

// BatchStorage is an optional interface of a [ChangeStorage], for changes of many plugins together.
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

	// Plugins are all instances, newest first. If there are none, the plugin need not be stored.
	Plugins []*PluginInfo

	// Reservation, if it is not nil, replaces the stored reservation of the name; RegistryState.Reservations has all. If a storage ignores
	// it, reservations end with the process.
	Reservation *plugin.Reservation
}
