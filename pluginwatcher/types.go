package pluginwatcher

// PluginHandler is the consumer of one plugin type, in the form that also learns whether a plugin was found in the deprecated
// directory. The [Watcher] walks it through this state machine, strictly and sequentially for each plugin name:
//
//	Validate ──▶ Register ──▶ DeRegister
//	   ▲            │
//	   └────────────┘
//
// What is promised about these calls is said at cache.PluginHandler, which is the same consumer of the same pipeline and also
// learns of a configured timeout. A method may block: it holds up its own plugin name only.
//
// The interface is that of the kubelet's pluginwatcher of March 2019.
type PluginHandler interface {
	// ValidatePlugin returns an error if the information provided by the plugin is erroneous, for example if none of the
	// versions is supported. foundInDeprecatedDir says that its socket lies in the deprecated directory of [NewWatcher].
	ValidatePlugin(pluginName string, endpoint string, versions []string, foundInDeprecatedDir bool) error
	// RegisterPlugin takes the plugin into use. The endpoint is the Unix socket on which the plugin's own services answer.
	// An error is told to the plugin.
	RegisterPlugin(pluginName, endpoint string, versions []string) error
	// DeRegisterPlugin ends the use of the plugin.
	DeRegisterPlugin(pluginName string)
}
