// Package dynamicplugins is the registry of the plugins that a host can use: which instances of each there are, which one of them
// is current, how to get a client for it, and a stream of what changes.
//
// A plugin is identified by its type and name; its instances by their AllocID. The newest instance is the current one, and when
// it goes the newest of those that are left takes its place in the same step. The registry is durable: an instance is on disk,
// through a StateStorage, before anyone can see it, and a change that cannot be saved does not take place, but one of
// the order (see StagePlugin).
//
// The package follows the documentation of Nomad's client/dynamicplugins and keeps its names; what it has beside them is said
// where it is declared. It does not find plugins, start them or ask whether they live: others do that and tell it, with
// RegisterPlugin, ConfirmPlugin and MarkUnreachable.
package dynamicplugins
