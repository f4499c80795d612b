package proxy

import (
	"context"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // the one encoding that every gRPC implementation has
	"google.golang.org/grpc/keepalive"
)

// What the proxy carries at most. The bounds are far above what gRPC's own defaults allow the ends, so that those decide.
const (
	// MaxMessageSize is the size in bytes of the largest message.
	MaxMessageSize = 256 << 20
	// MaxMetadataSize is the size in bytes, as HTTP/2 counts it, of the largest header or trailer.
	MaxMetadataSize = 1 << 20
	// maxHops is how many proxies a call may come through. One to a plugin whose endpoint is a socket of the proxy would come back for ever.
	maxHops = 8
)

const (
	// minPing is how often a caller may ping its connection. Nobody is told off who would not be by a plugin of another implementation.
	minPing = time.Second
	// drainTimeout is how long calls may take to notice that they were cut short.
	drainTimeout = 5 * time.Second
)

// Handler handles one call of a [Server], mostly by [Director.Forward]. The context is that of the call, and ends with the server's too.
type Handler func(ctx context.Context, caller grpc.ServerStream) error

// Server takes calls of whatever service, and has each handled. It is a [grpc.Server], of which Serve, ServeHTTP and Stop are of use.
type Server struct {
	*grpc.Server

	end context.Context //nolint:containedctx // All calls share it.
}

// NewServer returns a server whose calls end with end, for the cause of that.
func NewServer(end context.Context, handle Handler, options ...grpc.ServerOption) *Server {
	handler := func(_ any, caller grpc.ServerStream) error {
		end := end
		if request, ok := caller.Context().Value(requestKey{}).(context.Context); ok {
			end = request
		}
		ctx, cancel := context.WithCancelCause(caller.Context())
		defer cancel(nil)
		defer context.AfterFunc(end, func() { cancel(context.Cause(end)) })()
		return handle(ctx, caller)
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

// requestKey leads to the context of the HTTP request of a call.
type requestKey struct{}

// ServeHTTP takes a call from an HTTP server that has other things to serve too; what is no gRPC is not found. The call ends with its
// request, and not with the Server's context.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 2 || !strings.HasPrefix(r.Header.Get("Content-Type"), contentType) {
		http.NotFound(w, r)
		return
	}
	// A call whose context has ended is cut off without a status. Of those that end for a cause, the handler knows, and says why.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	defer context.AfterFunc(r.Context(), func() {
		if ownCause(r.Context()) == nil {
			cancel()
		}
	})()
	s.Server.ServeHTTP(w, r.WithContext(context.WithValue(ctx, requestKey{}, r.Context())))
}

// Drain takes no further calls and returns when the last one has ended. Those that go on for more than 5 s after the end of the server's
// context are cut off.
func (s *Server) Drain() {
	drained := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(drained)
	}()
	select {
	case <-drained:
		return
	case <-s.end.Done():
	}
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
		s.Stop()
		<-drained
	}
}
