package dynamicplugins

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// ConnDispenser creates a client on a plugin's shared connection; see [Store.Conn]. info is the current instance, while calls on conn
// always follow the name. It is called without locks held.
type ConnDispenser func(info *PluginInfo, conn grpc.ClientConnInterface) (any, error)

// defaultConfirmTimeout is far longer than the milliseconds in which a host checks one restored plugin, for machines that are starting.
const defaultConfirmTimeout = 2 * time.Second

// Option configures a registry; see [Open].
type Option func(*Store)

// WithConnDispenser adds a dispenser for a type, instead of a PluginDispenser of that type.
func WithConnDispenser(ptype string, dispenser ConnDispenser) Option {
	return func(r *Store) {
		r.originals[ptype] = dispenserOf{conn: dispenser}
	}
}

// WithConfirmTimeout sets how long a shared connection waits for a restored instance while no plugin is confirmed (default 2 s).
func WithConfirmTimeout(d time.Duration) Option {
	return func(r *Store) { r.confirmTimeout = d }
}

// Connections makes the shared connections of plugins that have their own protocol or limits, as goplugin.Connections does. It must be safe
// for concurrent use.
type Connections interface {
	// Dial connects to a socket.
	Dial(ctx context.Context, socketPath string) (net.Conn, error)
	// DialOptions returns the options of the connection to a socket, in addition to those of [WithDialOptions].
	DialOptions(socketPath string) []grpc.DialOption
	// Interceptor returns an interceptor for the calls to a socket that the daemon forwards in fragments of messages, to which dial options
	// do not apply; nil for none. Its ClientConn is nil, and it must return the stream of its streamer.
	Interceptor(socketPath string) grpc.StreamClientInterceptor
}

// WithConnections sets the Connections. The default connects to Unix sockets; on Linux, paths may be longer than a socket address can hold.
func WithConnections(connections Connections) Option {
	return func(r *Store) { r.pool.connections = connections }
}

// WithDialOptions adds dial options for shared connections, for example interceptors. The registry's own options take precedence. They do
// not apply to calls that the daemon forwards in fragments of messages; see [WithStatsHandlers] and [Connections].
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(r *Store) { r.pool.options = append(r.pool.options, options...) }
}

// WithStatsHandlers adds handlers for calls on shared connections. For a call that the daemon forwards in fragments of messages, they are
// called only at its beginning and end.
func WithStatsHandlers(handlers ...stats.Handler) Option {
	return func(r *Store) { r.pool.stats = append(r.pool.stats, handlers...) }
}

// Observer watches a registry, for metrics. Its functions may be nil. They are called concurrently, and must neither block nor call the
// registry.
type Observer struct {
	// Dispense receives the outcome of every DispensePlugin and Conn.
	Dispense func(ptype string, err error)
	// Resync is called when a subscriber was too slow and has to list the plugins again.
	Resync func()
}

// WithObserver sets the observer.
func WithObserver(o Observer) Option {
	return func(r *Store) { r.observer = o }
}
