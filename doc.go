// Package patchbay is the plugin runtime for Go hosts. With this one import, a long-running program discovers plugins by their Unix
// sockets, checks whether each may be used, registers it with its handler in a fixed sequence, remembers it across restarts, and gets live
// gRPC connections to it.
//
// A host creates a [Runtime] with [New], with a handler for each plugin type that it supports, and runs it:
//
//	rt, err := patchbay.New(patchbay.Config{
//		PluginDirs: []string{"/run/example/plugins"},
//		Handlers:   map[string]cache.PluginHandler{"CSIPlugin": handler},
//	})
//	...
//	err = rt.Run(ctx)
//
// A handler is a cache.PluginHandler, [HandlerFuncs], or [AcceptHandler] for types whose plugins only need to be called. While the Runtime
// runs, [Runtime.Registry] lists registered plugins and makes connections and clients.
//
// # Waiting for a plugin
//
// [Runtime.WaitForPlugins] is for a host that must not start work without some plugins: it waits until each has registered and is alive,
// and its error names those that are missing, with the reason. WaitForPlugin of the registry is for code that has only a registry: it also
// returns a plugin that was restored from the state and has not been checked yet. A caller of a plugin need not wait at all: a connection
// of the registry waits for a process that is being replaced.
//
// # Events
//
// [Runtime.Events] delivers all events, in order and without gaps. PluginsUpdatedCh of the registry only reports which plugins can be
// dispensed, and is for code that has only a registry. [Observer] is for metrics and traces: its functions are called synchronously. The
// Logger logs each event, so a host that follows Events need not log them again.
package patchbay
