package proxy

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/frames"
)

// unit is what is forwarded at a time: a message, or a fragment of one.
type unit interface {
	// holder is what RecvMsg and SendMsg take.
	holder() any
	free()
}

func (m *message) holder() any { return m }

// fragment is some bytes of a message, of a call whose caller and plugin both take those. It needs no freeing: it belongs to its stream.
type fragment struct{ *frames.Fragment }

func (f fragment) holder() any { return f.Fragment }
func (fragment) free()         {}

// fragmentCaller is the stream of a [LocalServer].
type fragmentCaller interface {
	UID() uint32
	Budget() *frames.Budget
	Whole() bool
}

// unitsOf returns the options of the call to the plugin, and what makes the units that are forwarded.
func unitsOf(caller grpc.ServerStream) (options []grpc.CallOption, newUnit func() unit) {
	if c, ok := caller.(fragmentCaller); ok {
		return []grpc.CallOption{frames.CallOption{Budget: c.Budget(), UID: c.UID()}}, func() unit { return fragment{new(frames.Fragment)} }
	}
	return []grpc.CallOption{
		grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(MaxMessageSize), grpc.MaxCallSendMsgSize(MaxMessageSize),
	}, func() unit { return new(message) }
}

// fragmentPlugin is the stream of a [frames.Client].
type fragmentPlugin interface {
	TrySendMsg(f *frames.Fragment) bool
}

// fragmentsOf returns the stream of a [frames.Client] that plugin is, or that it wraps; then its method Unwrap says which.
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

// checkUnits says why a plugin's stream cannot take units like m.
func checkUnits(plugin grpc.ClientStream, m unit) error {
	_, wanted := m.(fragment)
	if _, ok := fragmentsOf(plugin); ok == wanted {
		return nil
	}
	return status.Error(codes.Internal, "a call of fragments needs a connection that takes them, and others one that does not")
}

// forwardWhole forwards a request of which all is there already, without a goroutine for what the caller sends, and says whether it did.
// What is left is in m.
func forwardWhole(caller grpc.ServerStream, plugin grpc.ClientStream, m unit) bool {
	from, ok := caller.(fragmentCaller)
	if !ok || !from.Whole() {
		return false
	}
	f, ok := m.(fragment)
	if !ok {
		return false
	}
	if err := caller.RecvMsg(f.Fragment); errors.Is(err, io.EOF) {
		_ = plugin.CloseSend() // what is wrong is the status of the call
		return true
	} else if err != nil {
		return false
	}
	to, ok := fragmentsOf(plugin)
	if !ok || !to.TrySendMsg(f.Fragment) {
		return false
	}
	_ = caller.RecvMsg(f.Fragment) // the end, which gives its memory back
	return true
}
