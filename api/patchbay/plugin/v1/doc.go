// Package pluginv1 is what a launched plugin and its host say to each other, generated from plugin.proto: logging, metadata and
// admissions. The control API of the daemon is in api/patchbay/v1; how a plugin registers is the kubelet's protocol, in k8s.io/kubelet.
package pluginv1
