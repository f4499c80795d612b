package pluginclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	library "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// following returns a client of the library whose connection follows the plugin, and whose plugins are dispensed from the current process.
// It returns the same client until the process or the connection has ended.
func (c *Client) following(life *library.Client) (*library.GRPCClient, error) {
	client, err := c.withFollowingConn(life)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastLife == life && c.last.Conn == client.Conn {
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

// following is a plugin of the configuration that is always dispensed from the current process.
type following struct {
	library.Plugin

	client *Client
	name   string
}

var _ library.GRPCPlugin = following{}

// GRPCServer implements [library.GRPCPlugin]. A client does not call it.
func (following) GRPCServer(*library.GRPCBroker, *grpc.Server) error { return errors.ErrUnsupported }

// GRPCClient implements [library.GRPCPlugin]. It ignores its arguments, which belong to an earlier process.
func (f following) GRPCClient(context.Context, *library.GRPCBroker, *grpc.ClientConn) (any, error) {
	life, err := f.client.current(context.Background())
	if err != nil {
		return nil, err
	}
	client, err := f.client.withFollowingConn(life)
	if err != nil {
		return nil, err
	}
	return client.Dispense(f.name)
}

// withFollowingConn returns a copy of the library's client of a process, with a connection that follows the plugin.
func (c *Client) withFollowingConn(life *library.Client) (*library.GRPCClient, error) {
	own, err := own(life)
	if err != nil {
		return nil, err
	}
	client := *own
	client.Conn, err = c.followingConn(life.NegotiatedVersion())
	return &client, err
}

// own returns the library's own client of a process.
func own(life *library.Client) (*library.GRPCClient, error) {
	connected, err := life.Client()
	client, ok := connected.(*library.GRPCClient)
	if err == nil && !ok {
		err = fmt.Errorf("the plugin speaks gRPC, and the library connected to it with a %T", connected)
	}
	return client, err
}

// followingConn returns the connection for clients of one version of the plugin. It makes its calls on the library's own connection to the
// current process, and connects itself only if the host calls Connect.
func (c *Client) followingConn(version int) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.follow[version]; conn != nil && conn.GetState() != connectivity.Shutdown { // by the Close of an earlier client
		return conn, nil
	}
	if c.follow == nil {
		return nil, errKilled
	}
	f := follower{c, version}
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(f.dial), grpc.WithUnaryInterceptor(f.unary), grpc.WithStreamInterceptor(f.stream))
	if err != nil {
		return nil, err
	}
	c.follow[version] = conn
	return conn, nil
}

// follower makes calls to the process that serves, and delays them while there is none.
type follower struct {
	client  *Client
	version int
}

// conn waits for a process that serves, and returns the library's connection to it. It fails if the process speaks another version.
func (f follower) conn(ctx context.Context) (*grpc.ClientConn, error) {
	life, err := f.client.current(ctx)
	if err != nil {
		return nil, status.Error(cmp.Or(status.FromContextError(ctx.Err()).Code(), codes.Unavailable), err.Error())
	}
	if life.NegotiatedVersion() != f.version {
		return nil, status.Errorf(codes.FailedPrecondition,
			"the plugin speaks version %d now, and this client version %d; dispense it again", life.NegotiatedVersion(), f.version)
	}
	client, err := own(life)
	if err != nil {
		return nil, err
	}
	return client.Conn, nil
}

func (f follower) dial(ctx context.Context, _ string) (net.Conn, error) {
	if _, err := f.conn(ctx); err != nil {
		return nil, err
	}
	f.client.mu.Lock()
	endpoint := f.client.endpoint
	f.client.mu.Unlock()
	conn, err := (&goplugin.Protocol{Connections: &f.client.connections}).Dial(ctx, endpoint)
	return sock.Plain(conn), err
}

// lost returns the error of a call: Unavailable if the library closed the connection, because the process has ended.
func lost(ctx context.Context, conn *grpc.ClientConn, err error) error {
	if status.Code(err) == codes.Canceled && ctx.Err() == nil && conn.GetState() == connectivity.Shutdown {
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}

func (f follower) unary(
	ctx context.Context, method string, request, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	conn, err := f.conn(ctx)
	if err != nil {
		return err
	}
	return lost(ctx, conn, conn.Invoke(ctx, method, request, reply, opts...))
}

func (f follower) stream(
	ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	conn, err := f.conn(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := conn.NewStream(ctx, desc, method, opts...)
	return stream, lost(ctx, conn, err)
}
