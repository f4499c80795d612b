// Package pluginwatcher finds plugins by the sockets that they put into plugin directories and hands them to the handlers of their
// types: directories in, handler calls out.
//
// A plugin serves the kubelet's registration service (k8s.io/kubelet/pkg/apis/pluginregistration/v1) on a socket in a plugin directory or
// in any of its subdirectories. Names that start with a dot are ignored, and so is whatever is no socket. The socket is found when it
// appears, or at the start; the plugin is asked who it is, its handler validates and registers it, and the plugin is told. When the socket
// is removed, or nobody accepts on it any more, the plugin is deregistered.
//
// [Watcher] and [PluginHandler] are those of the kubelet's pluginwatcher, with the same promises; handlers of the later kubelet interface,
// cache.PluginHandler, are served by the same pipeline. That pipeline is the runtime's own, so the package brings nothing of its own but an
// example of a plugin and of a handler; hosts that also remember and hand out plugins import package patchbay.
package pluginwatcher
