package fleet

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/frames"
	"github.com/patchbay-dev/patchbay/proxy"
)

const (
	// idleNode is after which time without calls the connection to a node is closed; it is forgotten after twice that.
	idleNode = 5 * time.Minute
	// maxReconnect bounds the back-off of a connection that fails. Until it is over, its node is the last to be tried.
	maxReconnect = 5 * time.Second
	// reachedFor is how long a node counts as reachable after it answered: if no connection comes about, the reason is a certificate, and
	// the next call tries again, at most once in retryReached.
	reachedFor, retryReached = maxReconnect + connectTimeout, 50 * time.Millisecond
	// nodeSilence and nodeAnswer are after which time of silence a node is asked whether it is there, and how long it may take: a call to a
	// node that lost its power fails after both together.
	nodeSilence, nodeAnswer = 10 * time.Second, 3 * time.Second
	// nodePause is how long after a failure to connect for fragments there is no further attempt.
	nodePause = 2 * time.Second
)

// poolKey is a node at an address.
type poolKey struct{ node, address string }

// pool has the connections to nodes: one to each that takes new calls, and those that only have calls to end.
type pool struct {
	credentials *Credentials
	called      func(node string, err error) // nil for none
	closing     sync.WaitGroup

	mu    sync.Mutex
	conns map[poolKey]*pooled // those that take calls; nil after close
	all   map[*pooled]bool
}

func newPool(c *Credentials, called func(node string, err error)) *pool {
	return &pool{credentials: c, called: called, conns: map[poolKey]*pooled{}, all: map[*pooled]bool{}}
}

// pooled is a connection to a node, of messages and of fragments; each is made at the first call. It is a [stats.Handler], which counts its
// calls.
type pooled struct {
	*grpc.ClientConn
	fragments *frames.Client

	pool *pool
	key  poolKey
	with material
	made time.Time
	// reached is when the node last answered, in nanoseconds since 1970.
	reached atomic.Int64

	// The rest is guarded by pool.mu.
	used    time.Time // when it was last asked for
	calls   int       // those that are in progress or about to begin
	retired bool      // it takes no more calls and closes after the last one
}

// failing says whether a node is known not to be connected to.
func (p *pool) failing(k poolKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[k]
	return c != nil && c.failing()
}

// failing says that the node is known not to be reached.
func (c *pooled) failing() bool {
	_, failing := c.fragments.State()
	return failing || c.GetState() == connectivity.TransientFailure
}

// Close closes both.
func (c *pooled) Close() error { return errors.Join(c.fragments.Close(), c.ClientConn.Close()) }

// get returns the connection to a node for one call. The caller calls release when the call has begun or failed.
func (p *pool) get(k poolKey) (*pooled, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return nil, errors.New("the dialer of the fleet is closed")
	}
	now, with := time.Now(), p.credentials.material()
	c := p.conns[k]
	if c != nil && c.outdated(now, with) {
		p.retire(c)
		c = nil
	}
	if c == nil {
		for _, other := range p.conns {
			if other.calls == 0 && now.Sub(other.used) > 2*idleNode || other.key.node == k.node { // it has moved
				p.retire(other)
			}
		}
		var err error
		if c, err = p.connect(k, with, now); err != nil {
			return nil, err
		}
	}
	c.used = now
	c.calls++
	return c, nil
}

// outdated says whether the next call gets a new connection: because the files have changed, or because the last attempt reached the node
// and failed, which a renewed certificate mends.
func (c *pooled) outdated(now time.Time, with material) bool {
	return c.with != with || c.failing() && now.Sub(c.made) > retryReached &&
		now.Sub(time.Unix(0, c.reached.Load())) < reachedFor
}

// retire has a connection take no more calls. The caller holds mu.
func (p *pool) retire(c *pooled) {
	delete(p.conns, c.key)
	c.retired = true
	p.closeRetired(c)
}

// closeRetired closes a connection that has retired and has no calls. The caller holds mu.
func (p *pool) closeRetired(c *pooled) {
	if !c.retired || c.calls > 0 || !p.all[c] {
		return
	}
	delete(p.all, c)
	p.closing.Go(func() { _ = c.Close() }) // the call that ends last may be the one that is here
}

// count counts calls of a connection.
func (c *pooled) count(n int) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.calls += n
	c.pool.closeRetired(c)
}

func (c *pooled) release() { c.count(-1) }

// connect makes the connection to a node. The caller holds mu.
func (p *pool) connect(k poolKey, with material, now time.Time) (c *pooled, err error) {
	c = &pooled{pool: p, key: k, with: with, made: now}
	reached := func() { c.reached.Store(time.Now().UnixNano()) }
	c.ClientConn, err = grpc.NewClient("passthrough:///"+k.address,
		grpc.WithTransportCredentials(p.credentials.client(k.node, reached)),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(idleNode),
		grpc.WithMaxHeaderListSize(proxy.MaxMetadataSize),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proxy.MaxMessageSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: nodeSilence, Timeout: nodeAnswer, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Backoff{Min: time.Second, Max: maxReconnect}.GRPC(),
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithStatsHandler(c))
	if err != nil {
		return nil, err
	}
	c.fragments = frames.NewClient(frames.ClientConfig{
		Dial:    func(ctx context.Context) (net.Conn, error) { return p.dial(ctx, k, reached) },
		Timeout: connectTimeout, Idle: idleNode, Pause: nodePause, Silence: nodeSilence, Answer: nodeAnswer, TLS: true,
		Owner: nodeUser(k.node),
		Stats: []stats.Handler{c},
	})
	p.conns[k], p.all[c] = c, true
	return c, nil
}

// nodeUser stands for a node where what waits in memory is counted by user. No user has such a number, as those of containers are lower.
func nodeUser(node string) uint32 {
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, node) // it never fails
	return sum.Sum32() | 1<<31
}

// dial connects to a node.
func (p *pool) dial(ctx context.Context, k poolKey, reached func()) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", k.address)
	if err != nil {
		return nil, err
	}
	conn, _, err := p.credentials.client(k.node, reached).ClientHandshake(ctx, "", raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// close ends all calls, and returns when nothing is left.
func (p *pool) close() {
	p.mu.Lock()
	for c := range p.all {
		p.closing.Go(func() { _ = c.Close() })
	}
	p.conns, p.all = nil, nil
	p.mu.Unlock()
	p.closing.Wait()
}

// connect waits until the node can be called, or is known not to be. In the latter case, who opens a stream gets the reason.
func (c *pooled) connect(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if state := settle(waiting, c.ClientConn); state != connectivity.Idle && state != connectivity.Connecting {
		return nil
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Errorf(codes.Unavailable, "there is no connection to %s within %v", c.Target(), connectTimeout)
}

// HandleRPC implements stats.Handler.
func (c *pooled) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.Begin:
		c.count(1)
	case *stats.End:
		c.count(-1)
		if c.pool.called != nil {
			c.pool.called(c.key.node, s.Error)
		}
	}
}

// TagRPC implements stats.Handler.
func (*pooled) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (*pooled) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*pooled) HandleConn(context.Context, stats.ConnStats) {}
