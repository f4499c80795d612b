// Package reconciler makes the actual state of the world match the desired one: it asks each plugin socket for its type and name, calls the
// handler in the documented order, records the plugin in the registry, notifies the plugin, and undoes all of this when the socket is
// removed or stops accepting.
//
// It acts on present state (docs/adr/0002): sockets are contacted independently of each other; everything after that runs in one lane per
// plugin type and name, and a lane looks at what is true now, not at a queue of past changes. It does not watch the file system (package
// pluginwatcher does) or persist state (the registry does). It reaches the registry, the plugins and its observers through three small
// interfaces: Registry, Transport and Config.Observe.
package reconciler
