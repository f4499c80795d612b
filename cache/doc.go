// Package cache holds what the pipeline knows: the desired state of the world (the sockets that exist) and the actual
// state of the world (the plugins that are registered), and the interface of those who consume plugins, [PluginHandler].
//
// It keeps facts and tells who wants to know that they changed. It neither looks at the file system nor calls a plugin;
// package pluginwatcher fills the desired state and package reconciler makes the actual state match it.
//
// Names and promises follow k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache. Beside them stand an identity for each
// appearance of a socket, so that a socket that was removed and made again is a new one however coarse the clock is, and
// a notification of changes, so that nobody polls.
package cache
