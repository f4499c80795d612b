// Package csi is the consumer of CSI drivers (plugin type CSIPlugin): a handler that starts using drivers as the kubelet does, and
// dispensers of typed CSI clients.
//
// [Handler] negotiates the version, waits until the driver says that it is ready, makes sure that it is the one that it was announced as,
// and asks what it can do and what it knows of this node. What it found is kept with the instance in the registry: [NodeInfoOf] and the
// options [KeyVersion] and [KeyCapabilities] have it. A driver that serves a node is registered as csi-node too, and one that is also a
// controller as csi-controller.
//
// [Dispensers] make DispensePlugin hand out clients of the three CSI services. They are of use without the handler, too.
//
// The package neither finds drivers nor starts them, and calls no method that changes anything: volumes are the business of whoever
// dispenses a client. CSI here is version 1 of the Container Storage Interface, https://github.com/container-storage-interface/spec.
package csi
