package dyncall

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// maxAnswer bounds one answer in bytes.
const maxAnswer = 4 << 20

// Dial connects to the Unix socket at path; a socket on which nobody listens is an error of Dial already, and nothing is tried again. The
// caller closes the connection.
func Dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	if _, err := sock.Probe(ctx, path); err != nil {
		return nil, fmt.Errorf("cannot connect to socket %s: %w", path, err)
	}
	conn, err := grpc.NewClient("passthrough:///localhost", // the authority; plugins of some languages refuse a path there
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, path) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to socket %s: %w", path, err)
	}
	return conn, nil
}
