// Package dra is the consumer of drivers for dynamic resource allocation (plugin type DRAPlugin): a handler that starts using drivers as
// the kubelet does, and has them prepare and unprepare resource claims.
//
// [Handler] keeps one connection to every registered instance of a driver. While a driver is replaced, the older and the newer instance are
// registered side by side; calls go to the newest, and the older is released once it is gone. [Handler.Prepare] and [Handler.Unprepare]
// repeat a call that did not reach the driver, or whose answer was lost, which is safe because drivers must be idempotent. Where a driver
// announces the health service, [Handler.Health] is what it last said of its devices.
//
// [Dispensers] make DispensePlugin hand out a typed client. It also works without the handler.
//
// The package allocates nothing and knows no Kubernetes API: the host and its drivers decide which claims there are, and which devices are
// allocated to them. The services are those of k8s.io/kubelet/pkg/apis/dra, in the versions v1 and v1beta1, and of
// k8s.io/kubelet/pkg/apis/dra-health/v1alpha1.
package dra
