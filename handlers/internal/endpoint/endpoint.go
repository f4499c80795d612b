// Package endpoint connects a handler to the endpoint of a plugin and calls it there, bounded in time and text. It is for the handler's own
// calls; consumers of the plugin use the shared connection of the registry.
package endpoint

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// maxAnswer bounds one answer of a plugin in bytes.
const maxAnswer = 4 << 20

// Dial returns a connection to the Unix socket at path, which may be longer than a socket address can hold. It does not block: the
// connection is made with the first call, and made anew within a second when it broke. The caller closes it.
func Dial(path string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///localhost", // the authority; plugins of some languages refuse a path there
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, path) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to endpoint %s: %w", path, err)
	}
	return conn, nil
}
