package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Conn returns a gRPC connection to a plugin through the control socket. It can call every method that the plugin serves, including
// reflection and health. Each call goes to the instance that is current when the call begins. Conn does not connect yet. The caller must
// close the connection; [Client.Close] does not.
//
// Messages may have up to 256 MiB. The errors of calls are gRPC statuses: codes.Unavailable if no daemon runs, or if the plugin is not
// registered or cannot be reached, and codes.PermissionDenied if the daemon refuses the user; other errors come from the plugin.
func (c *Client) Conn(ptype, name string) (*grpc.ClientConn, error) { return c.conn(ptype, name) }

// FleetConn returns a connection to a plugin of the fleet, like Conn. If node is not empty, calls go to that node. Otherwise each call goes
// to this node if it has the plugin, and else to a random node that has it. Calls to other nodes use the certificate of this node's daemon.
func (c *Client) FleetConn(ptype, name, node string) (*grpc.ClientConn, error) {
	onward := []string{proxy.FleetKey, "any"}
	if node != "" {
		onward = append(onward, proxy.NodeKey, url.PathEscape(node))
	}
	return c.conn(ptype, name, onward...)
}

// FleetConnByLabels is like FleetConn for a plugin on a node that has all of the labels.
func (c *Client) FleetConnByLabels(ptype, name string, labels map[string]string) (*grpc.ClientConn, error) {
	onward := []string{proxy.FleetKey, "any"}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		onward = append(onward, proxy.LabelKey, url.PathEscape(key+"="+labels[key]))
	}
	return c.conn(ptype, name, onward...)
}

// conn returns a connection whose calls have the metadata of the route to a plugin, and the additional metadata onward.
func (c *Client) conn(ptype, name string, onward ...string) (*grpc.ClientConn, error) {
	if ptype == "" || name == "" {
		return nil, errors.New("cannot connect to a plugin: its type or its name is empty")
	}
	route := append(proxy.Route(ptype, name), onward...)
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.dial(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proxy.MaxMessageSize)),
		grpc.WithUnaryInterceptor(func(
			ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
		) error {
			return invoke(metadata.AppendToOutgoingContext(ctx, route...), method, request, reply, conn, options...)
		}),
		grpc.WithStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return open(metadata.AppendToOutgoingContext(ctx, route...), desc, conn, method, options...)
		}))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to plugin %s/%s: %w", ptype, name, err)
	}
	return conn, nil
}

// dial connects to the control socket. Its error explains why it cannot.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	conn, err := dial(ctx, c.socketPath)
	if unreached := c.unreached(err); unreached != nil {
		return nil, unreached
	}
	return conn, err
}

func dial(ctx context.Context, path string) (net.Conn, error) {
	if path == "" {
		return nil, errNoPath
	}
	return sock.Dial(ctx, path)
}
