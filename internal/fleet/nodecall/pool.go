package nodecall

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
	// nodeIdle is the time without calls after which the connection to a node is closed. After twice that time the connection is forgotten.
	nodeIdle = 5 * time.Minute
	// nodePause is the time after a failed attempt to connect in which there is no other attempt, and the node is tried last.
	nodePause = 2 * time.Second
	// reachedFor is the time for which a node that has answered counts as reachable. If an attempt to connect fails in that time, the
	// reason is a certificate, and the next call tries again, at most once in retryReached.
	reachedFor, retryReached = nodePause + connectTimeout, 50 * time.Millisecond
	// nodeSilence is the time of silence after which a node is pinged, and nodeAnswer the time for its answer.
	nodeSilence, nodeAnswer = 10 * time.Second, 3 * time.Second
)

type poolKey struct{ node, address string }

// nodeConn is a connection to a node, which is made for the first call.
type nodeConn struct {
	*h2proxy.Client

	dialer  *Dialer
	key     poolKey
	with    material
	made    time.Time
	reached atomic.Int64 // when the node last answered, in nanoseconds since 1970

	// The rest is guarded by the lock of the dialer.
	used    time.Time // by the last call
	calls   int       // in progress, or about to begin
	retired bool      // the connection is closed after its last call
}

// isFailing reports whether the last attempt to connect to a node has failed recently.
func (d *Dialer) isFailing(k poolKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conns[k].isFailing()
}

func (c *nodeConn) isFailing() (failing bool) {
	if c != nil {
		_, failing = c.State()
	}
	return failing
}

func (d *Dialer) open(
	ctx context.Context, k poolKey, desc *grpc.StreamDesc, method string, options []grpc.CallOption,
) (grpc.ClientStream, error) {
	c, err := d.get(k)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	var once sync.Once
	end := func(err error) {
		once.Do(func() {
			c.release()
			if d.Called != nil {
				d.Called(k.node, err)
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
func (d *Dialer) get(k poolKey) (*nodeConn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("the dialer of the fleet is closed")
	}
	now, with := time.Now(), d.Credentials.material()
	c := d.conns[k]
	if c != nil && c.isOutdated(now, with) {
		d.retire(c)
		c = nil
	}
	if c == nil {
		for _, other := range d.conns {
			if other.calls == 0 && now.Sub(other.used) > 2*nodeIdle || other.key.node == k.node { // the node has moved
				d.retire(other)
			}
		}
		c = d.add(k, with, now)
	}
	c.used = now
	c.calls++
	return c, nil
}

// isOutdated reports whether the next call gets a new connection: the files have changed, or the last attempt reached the node and failed,
// which a renewed certificate can fix.
func (c *nodeConn) isOutdated(now time.Time, with material) bool {
	return c.with != with || c.isFailing() && now.Sub(c.made) > retryReached && now.Sub(time.Unix(0, c.reached.Load())) < reachedFor
}

// retire closes a connection after its last call. The caller holds mu.
func (d *Dialer) retire(c *nodeConn) {
	delete(d.conns, c.key)
	c.retired = true
	d.closeRetired(c)
}

func (d *Dialer) closeRetired(c *nodeConn) {
	if c.retired && c.calls == 0 && d.all[c] {
		delete(d.all, c)
		d.closing.Go(c.close) // not in this goroutine: it may belong to a call for which close waits
	}
}

func (c *nodeConn) close() { _ = c.Close() } // it never fails

func (c *nodeConn) release() {
	c.dialer.mu.Lock()
	defer c.dialer.mu.Unlock()
	c.calls--
	c.dialer.closeRetired(c)
}

// add returns a new connection to a node. The caller holds mu.
func (d *Dialer) add(k poolKey, with material, now time.Time) *nodeConn {
	c := &nodeConn{dialer: d, key: k, with: with, made: now}
	c.Client = h2proxy.NewClient(h2proxy.ClientConfig{
		Dial: c.dial, Timeout: connectTimeout, Idle: nodeIdle, Pause: nodePause, Silence: nodeSilence, Answer: nodeAnswer, TLS: true,
		Owner: UserOf(k.node),
	})
	if d.conns == nil {
		d.conns, d.all = map[poolKey]*nodeConn{}, map[*nodeConn]bool{}
	}
	d.conns[k], d.all[c] = c, true
	return c
}

// UserOf returns the number of a user to whom the calls of a node count. No user of the machine has such a number.
func UserOf(node string) uint32 {
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, node) // it never fails
	return sum.Sum32() | 1<<31
}

func (c *nodeConn) dial(ctx context.Context) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", c.key.address)
	if err != nil {
		return nil, err
	}
	conn, err := c.dialer.Credentials.client(ctx, raw, c.key.node)
	if ctx.Err() == nil { // the node has answered
		c.reached.Store(time.Now().UnixNano())
	}
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// Close ends all calls and closes all connections.
func (d *Dialer) Close() {
	d.mu.Lock()
	for c := range d.all {
		d.closing.Go(c.close)
	}
	d.conns, d.all, d.closed = nil, nil, true
	d.mu.Unlock()
	d.closing.Wait()
}
