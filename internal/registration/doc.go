// Package registration is the host's side of the kubelet's plugin registration protocol
// (k8s.io/kubelet/pkg/apis/pluginregistration/v1): two unary gRPC calls on a fresh connection to a plugin's socket.
//
// It has its own small gRPC client, because two calls in sequence need neither the goroutines nor the buffers of a channel
// (docs/adr/0005): HTTP/2 with prior knowledge over the framer of golang.org/x/net/http2, one stream at a time, everything on the caller's
// goroutine. It is no general gRPC client: no streaming, no compression, no reconnecting, no messages beyond some KiB.
//
// It decides nothing and repeats nothing; package reconciler does. What a plugin sends is bounded here, in bytes and in time, and judged
// there.
package registration
