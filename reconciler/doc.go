// Package reconciler makes the actual state of the world match the desired one: it asks every plugin socket who it is, walks the
// plugin through its handler in the documented order, records it in the registry, tells the plugin, and undoes all of it when
// the socket goes or nobody accepts on it any more.
//
// It acts on present state (docs/adr/0002): sockets that exist are asked independently of each other; what follows runs
// in one lane per plugin type and name, and a lane looks at what is true now, never at a queue of what happened. It does no
// file system watching (package pluginwatcher does) and keeps no state beyond the process (the registry does); it sees the
// registry, the plugins and the outside through the three small interfaces [Registry], [Transport] and [Config].Observe.
package reconciler
