package dynamicplugins

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// idleTimeout is how long an unused connection stays open. A new connection takes a millisecond.
	idleTimeout = time.Minute
	// connectTimeout is how long a plugin may take to accept a connection and speak HTTP/2 on it.
	connectTimeout = 5 * time.Second
)

// reconnect is the back-off between attempts to connect. It is short: a socket of this machine accepts or refuses immediately, and attempts
// load no network.
var reconnect = backoff.Backoff{Min: reconnectPause, Max: time.Second}.GRPC()

const reconnectPause = 20 * time.Millisecond

// A link has the shared connections to one instance: one for calls of whole messages, and one for calls that are forwarded in fragments of
// messages. Each is made at the first call, or before it if a caller waits for the plugin. Calls may begin on a link until it is retired;
// calls in progress then continue, and the last one closes the connections. A nil link is retired.
type link struct {
	pool *pool
	path string
	info *PluginInfo

	// Bit 0 of callState (retired): no new call may begin. The other bits count calls: each adds oneCall. Clearing the bit requires mu. It
	// is not a field under mu because calls of many goroutines would wait for each other there.
	callState atomic.Int64
	// messages and fragments are nil before the first call and after they were closed. They are made and closed with mu held, and closed
	// only while callState counts no calls.
	messages, fragments atomic.Pointer[grpcConn]
	mu                  sync.Mutex
	pending             *pendingcalls.Counter // set with the first connection
}

const retired, oneCall = 1, 2

// begin begins a call of fragments or of messages. It returns nil if the link is retired; otherwise the caller calls end when the call has
// ended.
func (l *link) begin(fragments bool) (grpc.ClientConnInterface, error) {
	if l.callState.Add(oneCall)&retired != 0 {
		l.end()
		return nil, nil
	}
	c, err := l.conn(fragments)
	if err != nil {
		l.end()
		return nil, err
	}
	return c, nil
}

// conn returns the connection of fragments or of messages. The caller has begun a call.
func (l *link) conn(fragments bool) (grpcConn, error) {
	at := &l.messages
	if fragments {
		at = &l.fragments
	}
	if c := at.Load(); c != nil {
		return *c, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := at.Load(); c != nil {
		return *c, nil
	}
	if l.pending == nil {
		l.pending = pendingcalls.At(l.path)
	}
	c, err := l.pool.connect(l, fragments)
	if err != nil {
		return nil, err
	}
	at.Store(&c)
	return c, nil
}

// preconnect revives the link and establishes the connection of messages. It does not block.
func (l *link) preconnect() {
	l.revive()
	l.pool.work(func() {
		c, err := l.begin(false)
		if c == nil || err != nil {
			return
		}
		defer l.end()
		if c, ok := c.(*grpc.ClientConn); ok {
			c.Connect()
		}
	})
}

func (l *link) end() {
	if l.callState.Add(-oneCall) == retired {
		l.closeUnused()
	}
}

func (l *link) revive() {
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.callState.And(^retired)
	}
}

func (l *link) retire() {
	if l != nil {
		l.callState.Or(retired)
		l.closeUnused()
	}
}

// closeUnused closes the connections if the link is retired and has no calls.
func (l *link) closeUnused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.callState.Load() != retired {
		return
	}
	for _, at := range []*atomic.Pointer[grpcConn]{&l.messages, &l.fragments} {
		if c := at.Load(); c != nil && l.pool.close(*c) {
			at.Store(nil)
		}
	}
}

// grpcConn is a [h2proxy.Client] or a [grpc.ClientConn].
type grpcConn interface {
	grpc.ClientConnInterface
	Close() error
}

// A pool owns the connections of all links and the goroutines that make and close them.
type pool struct {
	connections Connections
	options     []grpc.DialOption
	stats       []stats.Handler
	check       func(info *PluginInfo, conn net.Conn) error // see keeper.Keeper
	working     sync.WaitGroup                              // added to with mu held, while down is false

	mu   sync.Mutex
	open map[grpcConn]bool
	down bool
}

// unixSockets are the default [Connections].
type unixSockets struct{}

func (unixSockets) Dial(ctx context.Context, socketPath string) (net.Conn, error) {
	return sock.Dial(ctx, socketPath)
}

func (unixSockets) DialOptions(string) []grpc.DialOption { return nil }

func (unixSockets) Interceptor(string) grpc.StreamClientInterceptor { return nil }

func newPool() *pool {
	return &pool{
		connections: unixSockets{},
		check:       func(*PluginInfo, net.Conn) error { return nil },
		open:        make(map[grpcConn]bool),
	}
}

// connect makes a connection of l, of fragments or of messages, which is established when it is used. The target is not the path, because
// a target is a URL, which cannot express every path.
func (p *pool) connect(l *link, fragments bool) (grpcConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return nil, errDown
	}
	if fragments {
		c := h2proxy.NewClient(h2proxy.ClientConfig{
			Dial:    func(ctx context.Context) (net.Conn, error) { return p.dialFor(ctx, l) },
			Timeout: connectTimeout, Idle: idleTimeout, Pause: reconnectPause, Stats: p.stats, Pending: l.pending,
			Owner: ownerOf(l.info), Intercept: p.connections.Interceptor(l.path),
		})
		p.open[c] = true
		return c, nil
	}
	options := slices.Clone(p.options)
	for _, h := range p.stats {
		options = append(options, grpc.WithStatsHandler(h))
	}
	options = append(options, p.connections.DialOptions(l.path)...)
	c, err := grpc.NewClient("passthrough:///localhost", append(options,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.dialFor(ctx, l) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: connectTimeout}),
		grpc.WithIdleTimeout(idleTimeout))...)
	if err != nil {
		return nil, err
	}
	p.open[c] = true
	return c, nil
}

// ownerOf returns the user whose quotas an instance uses: that of its account, or a number that no user has.
func ownerOf(info *PluginInfo) uint32 {
	if info != nil && info.Instance != nil && info.Instance.Account.Known {
		return info.Instance.Account.UID
	}
	return math.MaxUint32
}

// dialFor connects to the socket of l and checks the process that serves it.
func (p *pool) dialFor(ctx context.Context, l *link) (net.Conn, error) {
	var conn net.Conn
	err := callback.Call(func() error {
		dialled, err := p.connections.Dial(ctx, l.path)
		if err != nil {
			return err
		}
		conn = dialled
		err = p.check(l.info, conn)
		if _, plain := p.connections.(unixSockets); !plain || err == nil {
			return err
		}
		// Which socket it is may decide. That costs more to know.
		_ = conn.Close()
		known, err := sock.DialKnown(ctx, l.path)
		if conn = known; err != nil {
			conn = nil
			return err
		}
		return p.check(l.info, conn)
	})
	if unreturned, ok := errors.AsType[*callback.Error](err); ok {
		err = fmt.Errorf("what makes or judges the connections did not return: %w", unreturned)
	}
	if err != nil && conn != nil {
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return nil, err
	}
	return sock.Plain(conn), nil
}

// work runs do on a goroutine of the pool, unless the pool is shut down.
func (p *pool) work(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.down {
		p.working.Go(do)
	}
}

// close closes a connection in another goroutine, because Close waits for goroutines of gRPC, of which the caller may be one. It returns
// false if shutdown closes the connection.
func (p *pool) close(c grpcConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return false
	}
	delete(p.open, c)
	p.working.Go(func() { _ = c.Close() }) // fails only if it is closed
	return true
}

// shutdown closes all connections, which ends the calls on them, and returns when they are closed.
func (p *pool) shutdown() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.working.Wait()
	for c := range p.open {
		_ = c.Close() // fails only if it is closed
	}
}
