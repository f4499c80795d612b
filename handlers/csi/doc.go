// Package csi is for CSI drivers (plugin type CSIPlugin): a handler that registers drivers as the kubelet does, and dispensers of typed CSI
// clients.
//
// [Handler] negotiates the version, waits until the driver is ready, checks that its name is the announced one, and asks for its
// capabilities and its information about this node. The registry keeps the result with the instance: [NodeInfoOf] and the options
// [KeyVersion] and [KeyCapabilities] have it. A driver that serves a node is registered as csi-node too, and one that is also a controller
// as csi-controller.
//
// [Dispensers] make DispensePlugin hand out clients of the three CSI services. They also work without the handler.
//
// The package neither discovers nor starts drivers, and calls no method that changes anything: volumes are up to the client's users. CSI
// here is version 1 of the Container Storage Interface, https://github.com/container-storage-interface/spec.
package csi
