// Package cache holds the pipeline's state, which is the desired state of the world (the sockets that exist) and the actual state of the
// world (the registered plugins), and defines [PluginHandler], the interface of a handler.
//
// It stores facts and notifies subscribers of changes. It neither reads the file system nor calls plugins: package pluginwatcher fills the
// desired state, and package reconciler makes the actual state match it.
//
// Names and promises follow k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache. In addition, each appearance of a socket has an identity, so
// that a recreated socket is a new one however coarse the clock is, and changes are notified, so that nobody polls.
package cache
