package pluginclient

import (
	"context"
	"net"

	library "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// followed returns what dispenses from a life of the plugin, with a connection that follows the plugin in the place of the life's own.
func (c *Client) followed(life *library.Client, connected library.ClientProtocol) (library.ClientProtocol, error) {
	own, ok := connected.(*library.GRPCClient)
	if !ok || c.attached != nil {
		return connected, nil
	}
	conn, err := c.following(life.NegotiatedVersion())
	if err != nil {
		return nil, err
	}
	following := *own
	following.Conn = conn
	return &following, nil
}

// following returns the connection for clients of one version of the plugin.
func (c *Client) following(version int) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.follow[version]; conn != nil {
		return conn, nil
	}
	f := follower{c, version}
	// The plugins of the library take this very type. No call gets further than to its interceptors.
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(f.unary), grpc.WithStreamInterceptor(f.stream), grpc.WithContextDialer(f.dial))
	if err != nil {
		return nil, err
	}
	if c.follow == nil {
		c.follow = map[int]*grpc.ClientConn{}
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
	ctx, cancel := context.WithTimeout(ctx, f.client.startTimeout())
	defer cancel()
	info, err := f.client.runtime.Registry().WaitForPlugin(ctx, pluginType, name)
	if err != nil {
		return "", status.Errorf(codes.Unavailable, "the plugin is not registered: %v", err)
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
	return f.client.runtime.Registry().Conn(ctx, pluginType, name)
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
	if c.runtime != nil {
		c.runtime.Registry().Shutdown() // before the plugin is told, which would wait for its calls
	}
}
