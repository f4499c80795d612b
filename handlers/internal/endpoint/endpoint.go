// Package endpoint connects a handler to the endpoint of a plugin and calls it there, bounded in time and text. It is for the handler's own
// calls; consumers of the plugin use the shared connection of the registry.
package endpoint

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// maxAnswer bounds one answer of a plugin in bytes, unless the handler knows better.
const maxAnswer = 4 << 20

// Conn is a connection to an endpoint that can be let go of while calls use it. Its methods are safe for concurrent use.
type Conn struct {
	*grpc.ClientConn

	mu      sync.Mutex
	users   int
	retired bool
}

// Dial returns a connection to the Unix socket at path, which may be longer than a socket address can hold. It does not block: the
// connection is made with the first call, and made again within a second when it broke, each time as the dialer of ctx judges; see
// [cache.EndpointDialer]. It does not end with ctx. The caller closes or retires it. The options are those of all its calls.
func Dial(ctx context.Context, path string, calls ...grpc.CallOption) (*Conn, error) {
	options := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}.GRPC(),
			MinConnectTimeout: 5 * time.Second, // a plugin on a busy machine may need that for the handshake; each call has its own timeout
		}),
		grpc.WithChainUnaryInterceptor(counted(pendingcalls.At(path))),
		grpc.WithDefaultCallOptions(append([]grpc.CallOption{grpc.MaxCallRecvMsgSize(maxAnswer)}, calls...)...),
	}
	if dial := cache.EndpointDialer(ctx); dial != nil {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, path) }))
	}
	conn, err := grpcsock.Dial(path, options...)
	return &Conn{ClientConn: conn}, err
}

// counted returns an interceptor that counts calls, so that a plugin that works on one is not taken for one that hangs.
func counted(pending *pendingcalls.Counter) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		call := pending.Begin()
		err := invoke(ctx, method, request, reply, conn, options...)
		call.End(err)
		return err
	}
}

// Use keeps the connection until a call of Done.
func (c *Conn) Use() { c.change(1, false) }

// Done ends one Use.
func (c *Conn) Done() { c.change(-1, false) }

// Retire closes the connection as soon as nobody uses it. No Use may follow.
func (c *Conn) Retire() { c.change(0, true) }

func (c *Conn) change(users int, retire bool) {
	c.mu.Lock()
	c.users += users
	c.retired = c.retired || retire
	unused := c.retired && c.users == 0
	c.mu.Unlock()
	if unused {
		_ = c.Close() // it fails only if it was closed
	}
}

// Probe returns why nobody can connect to the socket at path, nil if somebody accepts there. It connects as the dialer of ctx judges; see
// [Dial]. It blocks for up to a second, also if ctx has ended.
func Probe(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	dial := cache.EndpointDialer(ctx)
	if dial == nil {
		_, err := sock.Probe(ctx, path)
		return err
	}
	conn, err := dial(ctx, path)
	if err != nil {
		return err
	}
	return conn.Close()
}
