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

// ChangeStorage is what a StateStorage may have beside its two methods, so that the cost of a change does not grow with the number
// of plugins. The registry then calls PutDynamicPluginRegistryState no more.
type ChangeStorage interface {
	// PutDynamicPluginChange replaces what is kept for one type and name, with the same promise. Changes of different plugins
	// come from several goroutines at once and may become durable together; those of one plugin come one after the other.
	PutDynamicPluginChange(change *PluginChange) error
}

// PluginChange is the new state of one plugin.
type PluginChange struct {
	Type string
	Name string

	// Plugins is all instances, newest first. If there are none, nothing is to be kept of the plugin.
	Plugins []*PluginInfo

	// Kept, if it is not nil, takes the place of what is kept of the name itself: RegistryState.Kept has it then. A storage that leaves it
	// out has names kept for the life of the process only.
	Kept *KeptName
}

// KeptName says whose a name stays until a time, though no plugin of it is registered. The registry keeps it and does not act on it; see
// Config.NameGrace of package patchbay.
type KeptName struct {
	Type, Name string

	// UID and GID are the user and group.
	UID, GID uint32

	// Until is when that ends. The zero time: the name is kept for nobody.
	Until time.Time
}
