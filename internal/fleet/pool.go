package fleet

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

const (
	// idleNode is after which time without calls the connection to a node is closed; it is forgotten after twice that.
	idleNode = 5 * time.Minute
	// maxReconnect bounds the back-off of a connection that fails. Until it is over, its node is the last to be tried.
	maxReconnect = 5 * time.Second
	// reachedFor is how long a node counts as reachable after it answered: if no connection comes about, the reason is a certificate, and
	// the next call tries again, at most once in retryReached.
	reachedFor, retryReached = maxReconnect + connectTimeout, 50 * time.Millisecond
	// nodeSilence is after which time of silence a node is asked whether it is there, and nodeAnswer how long it may take.
	nodeSilence, nodeAnswer = 10 * time.Second, 3 * time.Second
	nodePause               = 2 * time.Second // after a failure to connect for fragments
)

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

// pooled is a connection to a node, of messages and of fragments; each is made at the first call.
type pooled struct {
	messages  *grpc.ClientConn
	fragments *h2proxy.Client

	pool    *pool
	key     poolKey
	with    material
	made    time.Time
	reached atomic.Int64 // when the node last answered, in nanoseconds since 1970

	// The rest is guarded by pool.mu.
	used    time.Time // when it was last asked for
	calls   int       // those that are in progress or about to begin
	retired bool      // it takes no more calls and closes after the last one
}

// failing reports whether the last attempt to connect to a node is known to have failed.
func (p *pool) failing(k poolKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[k]
	return c != nil && c.failing()
}

func (c *pooled) failing() bool {
	_, failing := c.fragments.State()
	return failing || c.messages.GetState() == connectivity.TransientFailure
}

func (c *pooled) close() { _ = errors.Join(c.fragments.Close(), c.messages.Close()) }

// open opens a stream for a call to a node.
func (p *pool) open(
	ctx context.Context, k poolKey, desc *grpc.StreamDesc, method string, options []grpc.CallOption,
) (stream grpc.ClientStream, err error) {
	c, err := p.get(k)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	var once sync.Once
	end := func(err error) {
		once.Do(func() {
			c.release()
			if p.called != nil {
				p.called(k.node, err)
			}
		})
	}
	options = append(slices.Clip(options), grpc.OnFinish(end))
	if _, ok := h2proxy.Requested(options); ok {
		stream, err = c.fragments.NewStream(ctx, desc, method, options...)
	} else if err = c.connect(ctx); err == nil {
		stream, err = c.messages.NewStream(ctx, desc, method, options...)
	}
	if err != nil {
		end(err)
	}
	return stream, err
}

// get returns the connection to a node for one call. The caller calls release when the call has ended or failed.
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

// outdated reports whether the next call gets a new connection: because the files have changed, or because the last attempt reached the
// node and failed, which a renewed certificate fixes.
func (c *pooled) outdated(now time.Time, with material) bool {
	return c.with != with || c.failing() && now.Sub(c.made) > retryReached &&
		now.Sub(time.Unix(0, c.reached.Load())) < reachedFor
}

// retire makes a connection take no more calls. The caller holds mu.
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
	p.closing.Go(c.close) // the call that ends last may be the one that is here
}

func (c *pooled) release() {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.calls--
	c.pool.closeRetired(c)
}

// connect returns a connection to a node. The caller holds mu.
func (p *pool) connect(k poolKey, with material, now time.Time) (c *pooled, err error) {
	c = &pooled{pool: p, key: k, with: with, made: now}
	c.messages, err = grpc.NewClient("passthrough:///"+k.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the connections that dial makes are encrypted
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.dial(ctx) }),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(idleNode),
		grpc.WithMaxHeaderListSize(proxy.MaxMetadataSize),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proxy.MaxMessageSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: nodeSilence, Timeout: nodeAnswer, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Backoff{Min: time.Second, Max: maxReconnect}.GRPC(),
			MinConnectTimeout: connectTimeout,
		}))
	if err != nil {
		return nil, err
	}
	c.fragments = h2proxy.NewClient(h2proxy.ClientConfig{
		Dial: c.dial, Timeout: connectTimeout, Idle: idleNode, Pause: nodePause, Silence: nodeSilence, Answer: nodeAnswer, TLS: true,
		Owner: nodeUser(k.node),
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

func (c *pooled) dial(ctx context.Context) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", c.key.address)
	if err != nil {
		return nil, err
	}
	conn, err := c.pool.credentials.client(ctx, raw, c.key.node)
	if ctx.Err() == nil { // else it has not answered in time
		c.reached.Store(time.Now().UnixNano())
	}
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

func (p *pool) close() {
	p.mu.Lock()
	for c := range p.all {
		p.closing.Go(c.close)
	}
	p.conns, p.all = nil, nil
	p.mu.Unlock()
	p.closing.Wait()
}

// connect waits until the node can be called, or is known not to be: then the error of a stream has the reason.
func (c *pooled) connect(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if state := settle(waiting, c.messages); state != connectivity.Idle && state != connectivity.Connecting {
		return nil
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Errorf(codes.Unavailable, "there is no connection to %s within %v", c.key.address, connectTimeout)
}
