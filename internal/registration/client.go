// Package registration is the host's side of the kubelet's plugin registration protocol
// (k8s.io/kubelet/pkg/apis/pluginregistration/v1): two calls on a fresh connection to a plugin's socket.
//
// It decides nothing and repeats nothing; package reconciler does. What a plugin answers is bounded in size here, and judged there.
package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Bounds of what a plugin may send. An answer holds a type, a name, an endpoint and some dozens of versions.
const (
	maxAnswer  = 512 << 10
	maxHeaders = 16 << 10
	ioBuffer   = 4 << 10
)

// Info is what a plugin announces about itself.
type Info struct {
	Type, Name, Endpoint string
	Versions             []string
}

// Client is a connection to the registration service of one plugin. It is not safe for concurrent use.
type Client struct {
	conn   *grpc.ClientConn
	socket *net.UnixConn
	peer   sock.Peer
	api    registerapi.RegistrationClient
}

// Dial connects to the registration socket at path. An error can be classified with sock.IsRefused and sock.IsGone.
func Dial(ctx context.Context, path string) (*Client, error) {
	socket, err := sock.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	peer, err := sock.PeerOf(socket)
	if err != nil {
		peer = sock.Peer{}
	}
	// The connection is used as it is: a client that would dial again could meet another plugin.
	given := false
	var mu sync.Mutex
	dialer := func(context.Context, string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if given {
			return nil, errors.New("the plugin closed the connection")
		}
		given = true
		return socket, nil
	}
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithReadBufferSize(ioBuffer), grpc.WithWriteBufferSize(ioBuffer), grpc.WithSharedWriteBuffer(true),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a gRPC client for %s: %w", path, err), socket.Close())
	}
	return &Client{conn: conn, socket: socket, peer: peer, api: registerapi.NewRegistrationClient(conn)}, nil
}

// GetInfo asks the plugin who it is.
func (c *Client) GetInfo(ctx context.Context) (Info, error) {
	info, err := c.api.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return Info{}, err
	}
	return Info{Type: info.Type, Name: info.Name, Endpoint: info.Endpoint, Versions: info.SupportedVersions}, nil
}

// Notify tells the plugin whether it is registered and, if not, why.
func (c *Client) Notify(ctx context.Context, registered bool, reason string) error {
	_, err := c.api.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: registered, Error: reason})
	return err
}

// Peer is the process at the other end; the zero Peer if the system does not say.
func (c *Client) Peer() sock.Peer { return c.peer }

// Socket is the connection itself. It may be looked at, not used.
func (c *Client) Socket() *net.UnixConn { return c.socket }

// Close ends the connection.
func (c *Client) Close() error {
	return errors.Join(c.conn.Close(), ignoreClosed(c.socket.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
