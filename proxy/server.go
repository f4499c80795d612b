// Package proxy forwards gRPC calls to plugins without knowing their services: any method, unary or streaming, with metadata, deadlines,
// cancellation and status details, and without looking into a message.
//
// A [Server] or a [LocalServer] accepts the calls, and a [Director] chooses the [grpc.ClientConnInterface] for each. The package
// keeps no connections, knows no registry, and retries nothing: a call stays on the connection chosen when it began. A Server holds at most
// one message per stream and direction, a LocalServer fragments of one, and flow control slows a sender that is faster than its reader. The
// fragments of all calls together have a bound; the messages do not.
//
// Two things differ from a direct connection. A Server decompresses messages and does not compress them again: compression applies to one
// hop in gRPC, and the hops here do not leave the machine. A message in an unknown encoding is refused with codes.Unimplemented, as gRPC
// prescribes. A LocalServer forwards compressed messages as they are.
//
// Headers that belong to one connection (user-agent, :authority and, at a Server, the encodings) are the proxy's own, and [HopsKey] gets
// one more value: a call that loops, because the endpoint of a plugin is a socket of the proxy, ends after 8 hops.
package proxy

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // the one encoding that every gRPC implementation has
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/frames"
)

// The limits of the proxy. They are far above gRPC's own defaults, so that the ends of a call decide.
const (
	// MaxMessageSize is the size in bytes of the largest message.
	MaxMessageSize = 256 << 20
	// MaxMetadataSize is the size in bytes, as HTTP/2 counts it, of the largest header or trailer.
	MaxMetadataSize = frames.MaxMetadata
	// maxHops is how many proxies a call may come through. One to a plugin whose endpoint is a socket of the proxy would come back forever.
	maxHops = 8
)

const (
	// minPing is how often a caller may ping its connection. A ping that a plugin of another implementation would accept is accepted.
	minPing = time.Second
	// drainTimeout is how long calls may take to notice that they were cut short.
	drainTimeout = 5 * time.Second
)

// Handler handles one call of a [Server] or [LocalServer], mostly by [Director.Forward]. ctx ends with the call or with the server's
// context. The caller receives its error: a gRPC status as it is, the end of a context with the code for that, any other error with
// codes.Unknown. A call whose handler panics or ends its goroutine fails with codes.Internal.
type Handler func(ctx context.Context, caller grpc.ServerStream) error

// Server accepts calls of any service, and passes each to its [Handler]. It holds whole messages, and nothing bounds those of all calls
// together; a [LocalServer] does not. Of the methods of [grpc.Server], use only Serve and Stop.
type Server struct {
	*grpc.Server

	end context.Context //nolint:containedctx // All calls share it.
}

// NewServer returns a server whose calls end when the context end does, with its cause.
func NewServer(end context.Context, handle Handler, options ...grpc.ServerOption) *Server {
	handler := func(_ any, caller grpc.ServerStream) error {
		// A goroutine of its own, because grpc-go would not end the call of a handler that ends its goroutine.
		handled := make(chan error, 1)
		go func() {
			err := status.Error(codes.Internal, "the handler of the call has ended without a status")
			defer func() { handled <- err }()
			err = endsWith(end, caller, handle)
		}()
		return <-handled
	}
	return &Server{grpc.NewServer(append([]grpc.ServerOption{
		grpc.UnknownServiceHandler(handler),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(MaxMessageSize),
		grpc.MaxSendMsgSize(MaxMessageSize),
		grpc.MaxHeaderListSize(MaxMetadataSize),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}, options...)...), end}
}

// endsWith handles a call that ends with end too. A panic of the handler is its error.
func endsWith(end context.Context, caller grpc.ServerStream, handle Handler) (err error) {
	ctx, cancel := context.WithCancelCause(caller.Context())
	defer cancel(nil)
	defer func() {
		if p := recover(); p != nil {
			err = status.Errorf(codes.Internal, "the handler of the call panicked: %v", p)
		}
	}()
	defer context.AfterFunc(end, func() { cancel(context.Cause(end)) })()
	return handle(ctx, caller)
}

// Drain stops accepting calls and returns when the last one has ended. It aborts calls that last longer than 5 s after the server's context
// has ended.
func (s *Server) Drain() { drain(s.end, s.GracefulStop, s.Stop) }

// drain stops in order, or for good when that takes longer than drainTimeout after the end of a context.
func drain(end context.Context, inOrder, forGood func()) {
	drained := make(chan struct{})
	go func() {
		inOrder()
		close(drained)
	}()
	select {
	case <-drained:
		return
	case <-end.Done():
	}
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
		forGood()
		<-drained
	}
}
