package pluginclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	library "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// following returns the library's client of a life, whose connection follows the plugin and whose plugins are dispensed from the process
// that serves by then. It is the same one as before if the life is.
func (c *Client) following(life *library.Client) (*library.GRPCClient, error) {
	client, err := c.of(life)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastLife == life {
		return c.last, nil
	}
	plugins := map[string]library.Plugin{}
	for name, plugin := range client.Plugins {
		plugins[name] = following{plugin, c, name}
	}
	client.Plugins = plugins
	c.last, c.lastLife = client, life
	return client, nil
}

// following is a plugin of the configuration that is dispensed from whichever life the plugin has.
type following struct {
	library.Plugin

	client *Client
	name   string
}

var _ library.GRPCPlugin = following{}

// GRPCServer implements [library.GRPCPlugin]. A client does not call it.
func (following) GRPCServer(*library.GRPCBroker, *grpc.Server) error { return errors.ErrUnsupported }

// GRPCClient implements [library.GRPCPlugin]. What it is given belongs to the life that the plugin had once.
func (f following) GRPCClient(context.Context, *library.GRPCBroker, *grpc.ClientConn) (any, error) {
	life, err := f.client.current(context.Background())
	if err != nil {
		return nil, err
	}
	client, err := f.client.of(life)
	if err != nil {
		return nil, err
	}
	return client.Dispense(f.name)
}

// of returns a copy of the library's client of a life, with a connection that follows the plugin in the place of the life's own.
func (c *Client) of(life *library.Client) (*library.GRPCClient, error) {
	connected, err := life.Client()
	if err != nil {
		return nil, err
	}
	own, ok := connected.(*library.GRPCClient)
	if !ok {
		return nil, fmt.Errorf("the plugin speaks gRPC, and the library connected to it with a %T", connected)
	}
	client := *own
	client.Conn, err = c.followingConn(life.NegotiatedVersion())
	return &client, err
}

// followingConn returns the connection for clients of one version of the plugin.
func (c *Client) followingConn(version int) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.follow[version]; conn != nil {
		return conn, nil
	}
	if c.follow == nil {
		return nil, errKilled
	}
	f := follower{c, version}
	options := append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)), // as the library does
	}, c.config.GRPCDialOptions...)
	reconnect := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second} // a socket on the same machine answers or refuses immediately
	conn, err := grpc.NewClient("passthrough:///localhost", append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(f.dial), // which does TLS itself
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect.GRPC(), MinConnectTimeout: c.startTimeout()}),
		grpc.WithChainUnaryInterceptor(f.unary), grpc.WithChainStreamInterceptor(f.stream))...)
	if err != nil {
		return nil, err
	}
	c.follow[version] = conn
	return conn, nil
}

// follower connects to the process that serves, and delays calls while there is none.
type follower struct {
	client  *Client
	version int
}

// await waits until a process serves, and fails if it speaks another version.
func (f follower) await(ctx context.Context) error {
	life, err := f.client.current(ctx)
	if err != nil {
		return status.Error(cmp.Or(status.FromContextError(ctx.Err()).Code(), codes.Unavailable), err.Error())
	}
	if life.NegotiatedVersion() != f.version {
		return status.Errorf(codes.FailedPrecondition,
			"the plugin speaks version %d now, and this client version %d; dispense it again", life.NegotiatedVersion(), f.version)
	}
	return nil
}

func (f follower) dial(ctx context.Context, _ string) (net.Conn, error) {
	if err := f.await(ctx); err != nil {
		return nil, err
	}
	f.client.mu.Lock()
	endpoint := f.client.endpoint
	f.client.mu.Unlock()
	conn, err := f.client.connections.Dial(ctx, endpoint)
	return sock.Plain(conn), err
}

func (f follower) unary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if err := f.await(ctx); err != nil {
		return err
	}
	return invoke(ctx, method, request, reply, conn, opts...)
}

func (f follower) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if err := f.await(ctx); err != nil {
		return nil, err
	}
	return open(ctx, desc, conn, method, opts...)
}
