package dynamicplugins

import "time"

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

	// Kept, if it is not nil, replaces the stored reservation of the name, which RegistryState.Kept returns. With a storage that ignores it,
	// reservations last only as long as the process.
	Kept *KeptName
}

// KeptName is a reservation of a name for a user, while no plugin of that name is registered. The registry stores it and does not act on
// it; see Config.NameGrace of package patchbay.
type KeptName struct {
	Type, Name string

	// UID and GID are the user and group.
	UID, GID uint32

	// Until is when the reservation ends. With the zero time the name is not reserved.
	Until time.Time
}
