package dynamicplugins

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// ConnDispenser creates a client on a plugin's shared connection (see [Store.Conn]). Info is the instance that is current at the moment,
// while calls on conn always follow the name. It is called without locks held.
type ConnDispenser func(info *PluginInfo, conn grpc.ClientConnInterface) (any, error)

// defaultConfirmTimeout covers the few milliseconds in which a host checks a restored plugin that lives, with some to spare for a
// machine that has just started.
const defaultConfirmTimeout = 2 * time.Second

// Option changes how Open makes a registry.
type Option func(*Store)

// WithConnDispenser adds a dispenser that gets a shared connection. It goes before a PluginDispenser of the same type.
func WithConnDispenser(ptype string, dispenser ConnDispenser) Option {
	return func(r *Store) {
		r.originals[ptype] = dispenserOf{conn: dispenser}
	}
}

// WithConfirmTimeout sets how long a shared connection waits at most for a restored instance to be confirmed. The default is 2 s.
func WithConfirmTimeout(d time.Duration) Option {
	return func(r *Store) { r.confirmTimeout = d }
}

// Connections make the shared connections of plugins that have a protocol or limits of their own, as goplugin.Connections do. Their methods
// are called by several goroutines at once.
type Connections interface {
	// Dial connects to a socket.
	Dial(ctx context.Context, socketPath string) (net.Conn, error)
	// DialOptions returns the options of the connection to a socket, in addition to those of [WithDialOptions].
	DialOptions(socketPath string) []grpc.DialOption
	// Interceptor returns an interceptor for the calls to a socket that the daemon forwards in fragments of messages, to which dial options
	// do not apply; nil for none. It gets no connection, and returns the stream that it was given.
	Interceptor(socketPath string) grpc.StreamClientInterceptor
}

// WithConnections sets what makes the shared connections. The default connects to a Unix socket, whose path may on Linux be longer than a
// socket address can hold.
func WithConnections(connections Connections) Option {
	return func(r *Store) { r.pool.connections = connections }
}

// WithDialOptions adds options to those with which shared connections are made, for example interceptors. They go before the registry's
// own. They do not apply to calls that the daemon forwards in fragments of messages; see [WithStatsHandlers] and [Connections].
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(r *Store) { r.pool.options = append(r.pool.options, options...) }
}

// WithStatsHandlers adds handlers for the calls on shared connections. For a call that the daemon forwards in fragments of messages, they
// are called only when it begins and when it ends.
func WithStatsHandlers(handlers ...stats.Handler) Option {
	return func(r *Store) { r.pool.stats = append(r.pool.stats, handlers...) }
}

// Observer sees what a registry does, for metrics. Its functions, like those of httptrace.ClientTrace, may be nil, because most
// observers need one of them. They are called by several goroutines at once and must neither block nor call the registry.
type Observer struct {
	// Dispense receives the outcome of every DispensePlugin and Conn.
	Dispense func(ptype string, err error)
	// Resync is called when a subscriber was too slow and has to list the plugins again.
	Resync func()
}

// WithObserver has an observer see what the registry does.
func WithObserver(o Observer) Option {
	return func(r *Store) { r.observer = o }
}
