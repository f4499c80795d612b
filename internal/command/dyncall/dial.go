package dyncall

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/grpcsock"
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
	return grpcsock.Dial(path, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithDisableServiceConfig())
}
