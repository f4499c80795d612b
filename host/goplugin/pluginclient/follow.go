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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// following returns the library's client of a life, whose connection follows the plugin and whose plugins are those of the life that it
// has when they are dispensed. It is the same one as before if the life is.
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
	life, err := f.client.current()
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
	// The plugins of the library take this very type. No call gets further than to its interceptors.
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(f.unary), grpc.WithStreamInterceptor(f.stream), grpc.WithContextDialer(f.dial))
	if err != nil {
		return nil, err
	}
	c.follow[version] = conn
	return conn, nil
}

// follower has calls go to whichever life the plugin has when they begin. It waits while there is none.
type follower struct {
	client  *Client
	version int
}

// endpoint returns where the plugin serves at present.
func (f follower) endpoint(ctx context.Context) (string, error) {
	info, err := f.client.registered(ctx)
	if err != nil {
		return "", status.Error(cmp.Or(status.FromContextError(ctx.Err()).Code(), codes.Unavailable), err.Error())
	}
	endpoint := info.ConnectionInfo.SocketPath
	if life := f.client.connections.Client(endpoint); life != nil && life.NegotiatedVersion() != f.version {
		return "", status.Errorf(codes.FailedPrecondition,
			"the plugin speaks version %d now, and this client version %d; dispense it again", life.NegotiatedVersion(), f.version)
	}
	return endpoint, nil
}

func (f follower) conn(ctx context.Context) (grpc.ClientConnInterface, error) {
	if _, err := f.endpoint(ctx); err != nil {
		return nil, err
	}
	return f.client.runtime.Load().Registry().Conn(ctx, pluginType, name)
}

func (f follower) unary(
	ctx context.Context, method string, request, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	conn, err := f.conn(ctx)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, request, reply, opts...)
}

func (f follower) stream(
	ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	conn, err := f.conn(ctx)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

// dial is for hosts that have the connection connect, or watch its state.
func (f follower) dial(ctx context.Context, _ string) (net.Conn, error) {
	endpoint, err := f.endpoint(ctx)
	if err != nil {
		return nil, err
	}
	return f.client.connections.Dial(ctx, endpoint)
}

// unfollow ends what follows the plugin, with the calls that are under way.
func (c *Client) unfollow() {
	c.mu.Lock()
	follow := c.follow
	c.follow = nil
	c.mu.Unlock()
	for _, conn := range follow {
		_ = conn.Close() // fails only if it is closed
	}
	if runtime := c.runtime.Load(); runtime != nil {
		runtime.Registry().Shutdown() // before the plugin is told, which would wait for its calls
	}
}
