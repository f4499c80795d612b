package dynamicplugins

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// idleTimeout is how long a connection that nobody uses stays open. Making it anew takes a millisecond.
	idleTimeout = time.Minute
	// connectTimeout is how long a plugin may take to accept a connection and speak HTTP/2 on it.
	connectTimeout = 5 * time.Second
)

// reconnect is the back-off between attempts to connect. A socket on the same machine answers or refuses at once, so there is no
// network to spare and long pauses would only delay the return of a plugin.
var reconnect = backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}.GRPC()

// A link is the shared connection to one instance. It is made at the first call. While the link is in use calls may begin on it;
// when it is retired, calls that have begun go on, and the last one closes the connection. A nil link is never in use.
type link struct {
	pool *pool
	path string
	info *PluginInfo

	mu    sync.Mutex
	inUse bool
	calls int              // under way
	conn  *grpc.ClientConn // nil until the first call, and when it was closed
}

// begin begins a call. It returns no connection if the link is not in use; otherwise the caller calls end when the call has ended.
func (l *link) begin() (*grpc.ClientConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.inUse {
		return nil, nil
	}
	if l.conn == nil {
		conn, err := l.pool.connect(l)
		if err != nil {
			return nil, err
		}
		l.conn = conn
	}
	l.calls++
	return l.conn, nil
}

// end ends a call.
func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	l.closeUnused()
}

func (l *link) revive() {
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.inUse = true
	}
}

func (l *link) retire() {
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.inUse = false
		l.closeUnused()
	}
}

// closeUnused closes the connection if it will not be used any more. The caller holds l.mu.
func (l *link) closeUnused() {
	if !l.inUse && l.calls == 0 && l.conn != nil && l.pool.close(l) {
		l.conn = nil
	}
}

// A pool owns the connections of all links and the goroutines that close them.
type pool struct {
	dial    func(ctx context.Context, socketPath string) (net.Conn, error)
	options []grpc.DialOption
	more    func(socketPath string) []grpc.DialOption   // may be nil
	judge   func(info *PluginInfo, conn net.Conn) error // may be nil
	closing sync.WaitGroup                              // added to with mu held, while down is false

	mu   sync.Mutex
	open map[*link]*grpc.ClientConn
	down bool
}

func newPool() *pool {
	return &pool{
		dial: func(ctx context.Context, socketPath string) (net.Conn, error) { return sock.DialKnown(ctx, socketPath) },
		open: make(map[*link]*grpc.ClientConn),
	}
}

// connect makes the connection of l, which is established when it is used.
//
// The path is given to the dialer and not to gRPC as a target, which is a URL and could not hold every path.
func (p *pool) connect(l *link) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return nil, errDown
	}
	conn, err := grpc.NewClient("passthrough:///localhost", append(p.optionsFor(l.path),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.dialFor(ctx, l) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: connectTimeout}),
		grpc.WithIdleTimeout(idleTimeout))...)
	if err == nil {
		p.open[l] = conn
	}
	return conn, err
}

// dialFor connects to the socket of l, if who serves it passes judgement.
func (p *pool) dialFor(ctx context.Context, l *link) (net.Conn, error) {
	conn, err := p.dial(ctx, l.path)
	if err != nil || p.judge == nil {
		return conn, err
	}
	if err := p.judge(l.info, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// optionsFor returns the options of the connection to a socket.
func (p *pool) optionsFor(path string) []grpc.DialOption {
	options := slices.Clone(p.options)
	if p.more != nil {
		options = append(options, p.more(path)...)
	}
	return options
}

// close closes the connection of l, on a goroutine: gRPC waits for its own, and the caller may be one of them. It reports false
// if shutdown closes it already.
func (p *pool) close(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return false
	}
	conn := p.open[l]
	delete(p.open, l)
	p.closing.Go(func() { _ = conn.Close() }) // fails only if it is closed
	return true
}

// shutdown closes all connections, which ends the calls on them, and returns when they are closed.
func (p *pool) shutdown() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.closing.Wait()
	for _, conn := range p.open {
		_ = conn.Close() // fails only if it is closed
	}
}
