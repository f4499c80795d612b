// Package proxy forwards gRPC calls to plugins without knowing their services. It forwards any method, unary or streaming, with metadata,
// deadline, cancellation and status details, and does not decode messages.
//
// A [Server] accepts the calls, and a [Director] chooses the [grpc.ClientConnInterface] for each: a connection of a registry
// (dynamicplugins.Store) or of the fleet (nodecall.Dialer). The package keeps no connections, and retries nothing: a call stays on
// the connection chosen when it began. Messages are forwarded as fragments, whatever their size and encoding. The fragments of all calls
// together have a bound, and flow control slows a sender that is faster than its reader.
//
// The proxy sends its own headers of the connection, such as user-agent and :authority, and adds a value to [HopsKey]: a call that loops,
// because the endpoint of a plugin is a socket of the proxy, fails after 8 hops.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // lets clients in programs with this package accept gzip from plugins
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

const (
	// MaxMessageSize is the size in bytes of the largest message that the clients of packages client and fleet receive. It is far above
	// gRPC's own default. A [Server] has no such limit.
	MaxMessageSize = 256 << 20
	// maxMetadataSize is the size in bytes, as HTTP/2 counts it, of the largest header or trailer.
	maxMetadataSize = h2proxy.MaxMetadata
	// maxHops is the maximum number of proxies that a call passes, to end calls that loop.
	maxHops = 8
)

const (
	defaultHeaderTimeout = 10 * time.Second
	// drainTimeout is how long Drain waits for calls to end after they were canceled.
	drainTimeout = 5 * time.Second
	// unknownUser is a number that no user has.
	unknownUser = 1<<32 - 1
)

// Handler handles one call of a [Server], usually with [Director.Forward]. ctx is done when the call ends or the server's lifetime is done.
// The caller receives the error: a gRPC status unchanged, the error of a context with its code, any other error with codes.Unknown. A call
// whose handler panics or calls [runtime.Goexit] fails with codes.Internal.
type Handler func(ctx context.Context, caller grpc.ServerStream) error

// ServerConfig configures a [Server].
type ServerConfig struct {
	// Budget bounds the data that waits in memory; nil for a separate budget with the default limits.
	Budget *h2proxy.Budget
	// HeaderTimeout bounds how long a caller may take to begin speaking HTTP/2; zero for 10 s.
	HeaderTimeout time.Duration
	// Log receives the panics of handlers; nil to discard them.
	Log *slog.Logger
	// UID returns the user who makes a request that ServeHTTP handles; nil if one user makes all of them.
	// It is a function because the HTTP server authenticates.
	UID func(r *http.Request) uint32
}

// Server accepts calls of any service and passes each to its [Handler]. Its memory for data is bounded for all calls together, and does not
// depend on the size of messages. It accepts connections, whose method UID returns the calling user, and requests of an HTTP server. It is
// safe for concurrent use.
type Server struct {
	server   *h2proxy.Server
	http     h2proxy.HTTPHandler
	lifetime context.Context //nolint:containedctx // All calls share it.
}

// NewServer returns a server all of whose calls are canceled, with its cause, when lifetime is done.
func NewServer(lifetime context.Context, handle Handler, config ServerConfig) *Server {
	if config.Budget == nil {
		config.Budget = h2proxy.NewBudget(h2proxy.DefaultLimits, 0, func(uint32, h2proxy.Reason, bool) {})
	}
	if config.HeaderTimeout == 0 {
		config.HeaderTimeout = defaultHeaderTimeout
	}
	if config.UID == nil {
		config.UID = func(*http.Request) uint32 { return unknownUser }
	}
	handler := func(caller grpc.ServerStream) error { return handleUntil(lifetime, caller, handle, config.Log) }
	return &Server{
		server:   h2proxy.NewServer(h2proxy.ServerConfig{Budget: config.Budget, Timeout: config.HeaderTimeout, Handle: handler}),
		http:     h2proxy.HTTPHandler{Budget: config.Budget, UID: config.UID, Handle: handler},
		lifetime: lifetime,
	}
}

// handleUntil handles a call, which is canceled when lifetime is done. A panic of the handler is logged, and is the error of the call.
func handleUntil(lifetime context.Context, caller grpc.ServerStream, handle Handler, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(caller.Context())
	defer cancel(nil)
	defer context.AfterFunc(lifetime, func() { cancel(context.Cause(lifetime)) })()
	err := callback.Recover(func() error { return handle(ctx, caller) })
	var panicked *callback.Error
	if !errors.As(err, &panicked) {
		return err
	}
	if log != nil {
		method, _ := grpc.MethodFromServerStream(caller)
		log.Error("the handler of a call panicked", "method", method, "panic", panicked.Panic, "stack", panicked.Stack)
	}
	return status.Errorf(codes.Internal, "the handler of the call panicked: %v", panicked.Panic)
}

// Serve accepts connections until the listener fails, or until the server is drained, which is not an error. It closes the listener.
func (s *Server) Serve(l net.Listener) error { return s.server.Serve(l) }

// ServeHTTP handles a call of an HTTP server that also serves other requests. A request that is not gRPC is answered with "not found".
// Drain does not wait for these calls; drain the HTTP server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.http.ServeHTTP(w, r) }

// Drain stops accepting calls and returns when all calls have ended. It closes the connections of calls that are in progress 5 s after the
// server's lifetime is done.
func (s *Server) Drain() {
	drained := make(chan struct{})
	go func() {
		s.server.Drain()
		close(drained)
	}()
	select {
	case <-drained:
		return
	case <-s.lifetime.Done():
	}
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
		s.server.Stop()
		<-drained
	}
}
