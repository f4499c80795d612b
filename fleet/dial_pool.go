package fleet

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/proxy"
)

const (
	// idleNode is after which time without calls the connection to a node is closed; it is forgotten after twice that.
	idleNode = 5 * time.Minute
	// maxReconnect bounds the back-off of a connection that fails. Until it is over, its node is the last to be tried.
	maxReconnect = 5 * time.Second
	// nodeSilence and nodeAnswer are after which time of silence a node is asked whether it is there, and how long it may take: a call to a
	// node that lost its power fails after both together.
	nodeSilence, nodeAnswer = 10 * time.Second, 3 * time.Second
)

var errDialerClosed = errors.New("the dialer of the fleet is closed")

// poolKey is a node at an address.
type poolKey struct{ node, address string }

// pool has the connections to nodes.
type pool struct {
	config DialerConfig

	mu     sync.Mutex
	conns  map[poolKey]*pooled
	closed bool
}

// pooled is a connection to a node.
type pooled struct {
	*grpc.ClientConn
	used time.Time // when it was last asked for; guarded by pool.mu
}

func (p *pool) get(k poolKey) (*pooled, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errDialerClosed
	}
	now := time.Now()
	if c := p.conns[k]; c != nil {
		c.used = now
		return c, nil
	}
	for other, c := range p.conns {
		// One that is idle has no calls.
		if now.Sub(c.used) > 2*idleNode && c.GetState() != connectivity.Ready {
			delete(p.conns, other)
			_ = c.Close()
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+k.address,
		grpc.WithTransportCredentials(p.config.Credentials.client(k.node)),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(idleNode),
		grpc.WithMaxHeaderListSize(proxy.MaxMetadataSize),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proxy.MaxMessageSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: nodeSilence, Timeout: nodeAnswer, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Backoff{Min: time.Second, Max: maxReconnect}.GRPC(),
			MinConnectTimeout: p.config.ConnectTimeout,
		}))
	if err != nil {
		return nil, err
	}
	c := &pooled{ClientConn: conn, used: now}
	p.conns[k] = c
	return c, nil
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

// connect waits until the node can be called, or is known not to be. In the latter case, who opens a stream gets the reason.
func (c *pooled) connect(ctx context.Context, timeout time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		state := c.GetState()
		switch state {
		case connectivity.Ready, connectivity.TransientFailure, connectivity.Shutdown:
			return nil
		case connectivity.Idle:
			c.Connect()
		case connectivity.Connecting:
		}
		if !c.WaitForStateChange(waiting, state) {
			if ctx.Err() != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
			return status.Errorf(codes.Unavailable, "there is no connection to %s within %v", c.Target(), timeout)
		}
	}
}
