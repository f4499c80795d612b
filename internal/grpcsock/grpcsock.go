// Package grpcsock makes gRPC connections to Unix sockets, for those who ask one plugin at its socket. Consumers use the shared connections
// of the registry.
package grpcsock

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Dial returns a connection to the socket at path, which may be longer than a socket address can hold. It does not block: the connection is
// made with the first call. It stays when it is idle. The caller closes it.
func Dial(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///localhost", // the authority; plugins of some languages refuse a path there
		append([]grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, path) }),
			grpc.WithIdleTimeout(0),
		}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to socket %s: %w", path, err)
	}
	return conn, nil
}
