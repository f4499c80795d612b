// Package endpoint connects a handler to the endpoint of a plugin and calls it there, bounded in time and text. It is for the handler's own
// calls; consumers of the plugin use the shared connection of the registry.
package endpoint

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/grpcsock"
)

// maxAnswer bounds one answer of a plugin in bytes.
const maxAnswer = 4 << 20

// Dial returns a connection to the Unix socket at path, which may be longer than a socket address can hold. It does not block: the
// connection is made with the first call, and made anew within a second when it broke, each time as the dialer of ctx judges; see
// [cache.EndpointDialer]. It does not end with ctx. The caller closes it.
func Dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}.GRPC(),
			MinConnectTimeout: 5 * time.Second, // a plugin on a busy machine may need that for the handshake; each call has its own timeout
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	}
	if dial := cache.EndpointDialer(ctx); dial != nil {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, path) }))
	}
	return grpcsock.Dial(path, options...)
}
