// Package pluginwatcher discovers plugins by their sockets in plugin directories and passes them to the handlers of their types:
// directories in, handler calls out.
//
// A plugin serves the kubelet's registration service (k8s.io/kubelet/pkg/apis/pluginregistration/v1) on a socket in a plugin directory or
// in any of its subdirectories. Names that start with a dot and files that are not sockets are ignored. When a socket appears, and at
// startup, the plugin is asked for its type and name, its handler validates and registers it, and the plugin is notified. When the socket
// is removed or stops accepting, the plugin is deregistered.
//
// [Watcher] and [PluginHandler] are those of the kubelet's pluginwatcher, with the same promises; handlers of the later kubelet interface,
// cache.PluginHandler, are served by the same pipeline. That pipeline is the runtime's, so this package adds only an example plugin and an
// example handler. Hosts that also remember and dispense plugins import package patchbay.
package pluginwatcher
