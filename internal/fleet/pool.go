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
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

const (
	// nodeIdle is the time without calls after which the connection to a node is closed. It is forgotten after twice that time.
	nodeIdle = 5 * time.Minute
	// nodePause is the time after a failed attempt to connect in which there is no other, and the node is the last to be tried.
	nodePause = 2 * time.Second
	// reachedFor is the time for which a node that answered counts as reachable: if an attempt to connect to it fails, a certificate is the
	// reason, and the next call tries again, at most once in retryReached.
	reachedFor, retryReached = nodePause + connectTimeout, 50 * time.Millisecond
	// nodeSilence is the time of silence after which a node is pinged, and nodeAnswer the time for its answer.
	nodeSilence, nodeAnswer = 10 * time.Second, 3 * time.Second
)

type poolKey struct{ node, address string }

// pool has the connections to nodes: one to each node for new calls, and older ones that are closed after their last call.
type pool struct {
	credentials *Credentials
	ended       func(node string, err error) // called after each call; nil for none
	closing     sync.WaitGroup

	mu    sync.Mutex
	conns map[poolKey]*nodeConn // those for new calls; nil after close
	all   map[*nodeConn]bool
}

func newPool(c *Credentials, ended func(node string, err error)) *pool {
	return &pool{credentials: c, ended: ended, conns: map[poolKey]*nodeConn{}, all: map[*nodeConn]bool{}}
}

// nodeConn is a connection to a node, which is made for the first call.
type nodeConn struct {
	*h2proxy.Client

	pool    *pool
	key     poolKey
	with    material
	made    time.Time
	reached atomic.Int64 // when the node last answered, in nanoseconds since 1970

	// The rest is guarded by pool.mu.
	used    time.Time // by the last call
	calls   int       // in progress, or about to begin
	retired bool      // it takes no new calls
}

// isFailing reports whether the last attempt to connect to a node has failed just now.
func (p *pool) isFailing(k poolKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[k]
	return c != nil && c.isFailing()
}

func (c *nodeConn) isFailing() bool {
	_, failing := c.State()
	return failing
}

// open opens a stream for a call to a node.
func (p *pool) open(
	ctx context.Context, k poolKey, desc *grpc.StreamDesc, method string, options []grpc.CallOption,
) (grpc.ClientStream, error) {
	c, err := p.get(k)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	var once sync.Once
	end := func(err error) {
		once.Do(func() {
			c.release()
			if p.ended != nil {
				p.ended(k.node, err)
			}
		})
	}
	stream, err := c.NewStream(ctx, desc, method, append(slices.Clip(options), grpc.OnFinish(end))...)
	if err != nil {
		end(err)
	}
	return stream, err
}

// get returns the connection to a node for one call. The caller calls release when the call has ended.
func (p *pool) get(k poolKey) (*nodeConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return nil, errors.New("the dialer of the fleet is closed")
	}
	now, with := time.Now(), p.credentials.material()
	c := p.conns[k]
	if c != nil && c.isOutdated(now, with) {
		p.retire(c)
		c = nil
	}
	if c == nil {
		for _, other := range p.conns {
			if other.calls == 0 && now.Sub(other.used) > 2*nodeIdle || other.key.node == k.node { // it has moved
				p.retire(other)
			}
		}
		c = p.add(k, with, now)
	}
	c.used = now
	c.calls++
	return c, nil
}

// isOutdated reports whether the next call gets a new connection: the files have changed, or the last attempt reached the node and failed,
// which a renewed certificate fixes.
func (c *nodeConn) isOutdated(now time.Time, with material) bool {
	return c.with != with || c.isFailing() && now.Sub(c.made) > retryReached && now.Sub(time.Unix(0, c.reached.Load())) < reachedFor
}

// retire closes a connection after its last call. The caller holds mu.
func (p *pool) retire(c *nodeConn) {
	delete(p.conns, c.key)
	c.retired = true
	p.closeRetired(c)
}

func (p *pool) closeRetired(c *nodeConn) {
	if c.retired && c.calls == 0 && p.all[c] {
		delete(p.all, c)
		p.closing.Go(c.close) // in another goroutine, which is not one of the calls for which close waits
	}
}

func (c *nodeConn) close() { _ = c.Close() } // it never fails

func (c *nodeConn) release() {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.calls--
	c.pool.closeRetired(c)
}

// add returns a new connection to a node. The caller holds mu.
func (p *pool) add(k poolKey, with material, now time.Time) *nodeConn {
	c := &nodeConn{pool: p, key: k, with: with, made: now}
	c.Client = h2proxy.NewClient(h2proxy.ClientConfig{
		Dial: c.dial, Timeout: connectTimeout, Idle: nodeIdle, Pause: nodePause, Silence: nodeSilence, Answer: nodeAnswer, TLS: true,
		Owner: nodeUser(k.node),
	})
	p.conns[k], p.all[c] = c, true
	return c
}

// nodeUser returns the user to whom the data of a node that waits in memory counts. No user of the machine has such a number.
func nodeUser(node string) uint32 {
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, node) // it never fails
	return sum.Sum32() | 1<<31
}

func (c *nodeConn) dial(ctx context.Context) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", c.key.address)
	if err != nil {
		return nil, err
	}
	conn, err := c.pool.credentials.client(ctx, raw, c.key.node)
	if ctx.Err() == nil { // the node has answered
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
