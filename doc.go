// Package patchbay is the plugin runtime for Go hosts. With this one import, a long-running program discovers plugins by their Unix
// sockets, checks whether each may be used, registers it with its handler in a fixed sequence, remembers it across restarts, and gets live
// gRPC connections to it.
//
// A host creates a [Runtime] with [New], adds a handler for each plugin type it supports, and runs it:
//
//	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{"/run/example/plugins"}})
//	...
//	rt.AddHandler("CSIPlugin", handler)
//	err = rt.Run(ctx)
//
// While it runs, [Runtime.Registry] lists, waits for and dispenses registered plugins.
//
// This package only wires the parts together: discovery is in package pluginwatcher, registration in package reconciler, the registry in
// package dynamicplugins. The daemon and its commands are in cmd/patchbay.
package patchbay
