// Package endpoint connects a handler to the endpoint of a plugin and calls it, with timeouts and errors of bounded length. It is for the
// handler's own calls; consumers of the plugin use the shared connection of the registry.
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

// maxAnswer bounds one answer of a plugin in bytes, unless the options of Dial set another limit.
const maxAnswer = 4 << 20

// Conn is a connection to an endpoint that Retire closes after the last call on it.
type Conn struct {
	*grpc.ClientConn
	// Users are those that need the connection. The last one joins before Retire is called.
	Users sync.WaitGroup
}

// Dial returns a connection to the Unix socket at path, which may be longer than a socket address can hold. It does not block: the first
// call connects, and a broken connection is restored within a second, each time with the dialer of ctx; see [cache.EndpointDialer]. The end
// of ctx does not close the connection; the caller closes or retires it. The options apply to all calls.
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

// counted returns an interceptor that counts pending calls, so that a plugin that is busy with a call is not considered hung.
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

// Retire waits for all users, and closes the connection.
func (c *Conn) Retire() {
	c.Users.Wait()
	_ = c.Close() // it fails only if it was closed
}

// Probe connects to the socket at path with the dialer of ctx, see [Dial], and returns an error if no process accepts. It blocks for up to
// a second, even if ctx has ended.
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
