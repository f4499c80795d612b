// Package patchbay is the plugin runtime for Go hosts: one import with which a long-running program finds plugins that appear as Unix
// sockets, checks whether each may run, registers it with its consumer in a strict order, remembers it over restarts, and hands out live
// gRPC connections to it.
//
// A host makes a [Runtime] with [New], adds a handler for each plugin type that it knows, and runs it:
//
//	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{"/run/example/plugins"}})
//	...
//	rt.AddHandler("CSIPlugin", handler)
//	err = rt.Run(ctx)
//
// Meanwhile [Runtime.Registry] lists, waits for and dispenses the plugins that are registered.
//
// The package wires the parts together and has no logic of its own: discovery is in package pluginwatcher, the order of things in
// package reconciler, what is registered in package dynamicplugins. The daemon and its commands are in cmd/patchbay.
package patchbay
