package proxy

import (
	"context"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/frames"
)

// LocalConfig configures a [LocalServer].
type LocalConfig struct {
	// Budget bounds the data that waits in memory; nil for a separate budget with the default limits.
	Budget *frames.Budget
	// HeaderTimeout bounds how long a caller may take to begin speaking HTTP/2; zero for 10 s.
	HeaderTimeout time.Duration
	// UID returns the user who makes a request that ServeHTTP handles; nil if one user makes all of them.
	UID func(r *http.Request) uint32
}

// LocalServer accepts calls of any service, and passes each to its [Handler]. It forwards fragments of messages: the memory for data that
// waits does not depend on the size of messages, and is bounded for all calls together. It accepts connections whose method UID says which
// user calls, and the requests of an HTTP server. It forwards to connections of a registry (dynamicplugins.Store) and of the fleet
// (fleet.Dialer).
type LocalServer struct {
	server *frames.Server
	http   frames.HTTPHandler
	end    context.Context //nolint:containedctx // All calls share it.
}

// NewLocalServer returns a server whose calls end when the context end does, with its cause.
func NewLocalServer(end context.Context, handle Handler, config LocalConfig) *LocalServer {
	if config.Budget == nil {
		config.Budget = frames.NewBudget(frames.DefaultLimits, 0, func(uint32, frames.Reason, bool) {})
	}
	if config.HeaderTimeout == 0 {
		config.HeaderTimeout = defaultHeaderTimeout
	}
	if config.UID == nil {
		config.UID = func(*http.Request) uint32 { return nobody }
	}
	return &LocalServer{end: end, server: frames.NewServer(frames.ServerConfig{
		Budget: config.Budget, Timeout: config.HeaderTimeout,
		Handle: func(caller grpc.ServerStream) error { return endsWith(end, caller, handle) },
	}), http: frames.HTTPHandler{
		Budget: config.Budget, UID: config.UID,
		Handle: func(caller grpc.ServerStream) error { return endsWith(end, caller, handle) },
	}}
}

// nobody is the number that no user has.
const nobody = 1<<32 - 1

const defaultHeaderTimeout = 10 * time.Second

// Serve accepts connections until the listener fails, or until the server is drained, which is not an error. It closes the listener.
func (s *LocalServer) Serve(l net.Listener) error { return s.server.Serve(l) }

// ServeHTTP handles a call from an HTTP server that serves other things too; a request that is not gRPC gets "not found". The call ends
// with its request too. Who drains the HTTP server drains these calls.
func (s *LocalServer) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.http.ServeHTTP(w, r) }

// Drain stops accepting calls and returns when the last one has ended. It aborts calls that last longer than 5 s after the server's context
// has ended.
func (s *LocalServer) Drain() { drain(s.end, s.server.Drain, s.server.Stop) }
