// Package dynamicplugins is the registry of the plugins that a host can use: the instances of each plugin, which one is current, how to get
// a client for it, and a stream of changes.
//
// A plugin is identified by its type and name, and its instances by their AllocID. The newest instance is current; when it goes away, the
// newest remaining one becomes current in the same step. The registry is durable: an instance is on disk, through a StateStorage, before
// anyone can see it, and a change that cannot be saved does not take place, except a change of the order (see StagePlugins).
//
// The package follows the documentation of Nomad's client/dynamicplugins and keeps its names; additions are documented as such. It does not
// discover, start or probe plugins: its users do, and report to it with RegisterPlugin, ConfirmPlugin and MarkUnreachable.
package dynamicplugins
