// Package device is for device plugins (plugin type DevicePlugin): a handler that tracks their devices and allocates them to owners, so
// that no device is ever allocated twice.
//
// [Handler] is a cache.PluginHandler for plugins that are found in a plugin directory. For those that register the older way, it serves the
// kubelet's registration service on kubelet.sock, in a separate directory, and announces each in the plugin directory on its behalf, so
// that the pipeline validates, registers, watches and remembers all plugins alike.
//
// An allocation is durable before [Handler.Allocate] returns it and stays until [Handler.Release], whatever happens to the plugin, its
// devices or the host's process. The caller decides who the owners are and applies the environment variables, mounts and device nodes in
// the answer: the package starts nothing and mounts nothing.
//
// The API is version v1beta1 of the device plugin API, k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1.
package device
