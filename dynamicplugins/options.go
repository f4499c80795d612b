package dynamicplugins

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
)

// ConnDispenser makes a client on the shared connection of a plugin (see Registry.Conn). Info is the instance that is current at
// the moment; calls on conn follow the name. It is called with no lock held.
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

// WithDialer sets how shared connections connect to a socket. The default connects to a Unix socket, whose path may on Linux be longer
// than a socket address can hold.
func WithDialer(dial func(ctx context.Context, socketPath string) (net.Conn, error)) Option {
	return func(r *Store) { r.pool.dial = dial }
}

// WithConnJudge has each shared connection judged when it has been made, and before anything is sent on it: with an error it is closed, and
// the calls fail with that.
func WithConnJudge(judge func(info *PluginInfo, conn net.Conn) error) Option {
	return func(r *Store) { r.pool.judge = judge }
}

// WithDialOptions adds options to those with which shared connections are made, for example stats handlers. They go before the registry's
// own.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(r *Store) { r.pool.options = append(r.pool.options, options...) }
}

// WithDialOptionsFor adds options to the connection to one socket, after those of WithDialOptions: for plugins that have a protocol or
// limits of their own.
func WithDialOptionsFor(options func(socketPath string) []grpc.DialOption) Option {
	return func(r *Store) { r.pool.more = options }
}

// Observer sees what a registry does, for metrics. Its functions may be nil. They are called by several goroutines at once and
// must neither block nor call the registry.
type Observer struct {
	// Dispense is told the outcome of every DispensePlugin and Conn.
	Dispense func(ptype string, err error)
	// Resync is told whenever a subscriber was too slow and has to list the plugins again.
	Resync func()
}

// WithObserver has an observer see what the registry does.
func WithObserver(o Observer) Option {
	return func(r *Store) { r.observer = o }
}
