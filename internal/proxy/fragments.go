package proxy

import (
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

// fragmentCaller is the stream of a [Server].
type fragmentCaller interface {
	grpc.ServerStream
	UID() uint32
	Budget() *h2proxy.Budget
	Whole() bool
}

// fragmentPlugin is the stream of a [h2proxy.Client].
type fragmentPlugin interface {
	TrySendMsg(f *h2proxy.Fragment) bool
}

// fragmentsOf returns plugin itself if it is the stream of a [h2proxy.Client], or else the first such stream that its method Unwrap
// returns.
func fragmentsOf(plugin grpc.ClientStream) (fragmentPlugin, bool) {
	for {
		if f, ok := plugin.(fragmentPlugin); ok {
			return f, true
		}
		wrapper, ok := plugin.(interface{ Unwrap() grpc.ClientStream })
		if !ok {
			return nil, false
		}
		plugin = wrapper.Unwrap()
	}
}

// forwardWhole forwards a request that has arrived completely, which saves a goroutine, and reports whether it did. Otherwise f has
// received data that is still to be forwarded. The stream plugin is to, or wraps it.
func forwardWhole(caller fragmentCaller, plugin grpc.ClientStream, to fragmentPlugin, f *h2proxy.Fragment) bool {
	if !caller.Whole() {
		return false
	}
	if err := caller.RecvMsg(f); errors.Is(err, io.EOF) {
		_ = plugin.CloseSend() // an error is the status of the call
		return true
	} else if err != nil {
		return false
	}
	if !to.TrySendMsg(f) {
		return false
	}
	_ = caller.RecvMsg(f) // releases the buffer; returns io.EOF
	return true
}
