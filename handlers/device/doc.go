// Package device is the consumer of device plugins (plugin type DevicePlugin): a handler that keeps the list of their devices up to date
// and allocates devices to owners, so that none is ever given twice.
//
// [Handler] is a cache.PluginHandler for plugins that are found in a plugin directory. For those that register the older way it serves the
// registration service of the kubelet on kubelet.sock, in a directory of its own, and announces each to the plugin directory on its behalf,
// so that all plugins take the same road: validated, registered, watched and remembered by the pipeline.
//
// An allocation is durable before [Handler.Allocate] returns it and stays until [Handler.Release], whatever happens to the plugin, its
// devices or the host's process. Who the owners are, and what they do with the environment variables, mounts and device nodes of the
// answer, is the caller's business: the package starts nothing and mounts nothing.
//
// The API is version v1beta1 of the device plugin API, k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1.
package device
