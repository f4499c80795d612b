//go:build !linux

package sock

import (
	"context"
	"fmt"
	"net"
	"syscall"
)

// MaxPath is the length in bytes of the longest path at which a socket can be bound and reached: sun_path without the terminating NUL.
const MaxPath = 103

func dialLong(_ context.Context, _ *net.Dialer, path string) (net.Conn, error) {
	return nil, fmt.Errorf("connect %s: the path has %d bytes, the limit is %d; use a shorter one: %w", path, len(path), MaxPath, syscall.EINVAL)
}
