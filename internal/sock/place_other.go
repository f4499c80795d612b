//go:build !unix

package sock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
)

// Placed is a listening socket whose place a later one may take. There is none on this system.
type Placed struct{ net.Listener }

// Place is not supported on this system: the error wraps [errors.ErrUnsupported].
func Place(_ context.Context, path string, _ fs.FileMode, _ func(*net.UnixConn) error) (*Placed, error) {
	return nil, fmt.Errorf("cannot listen on %s: Unix sockets with an owner are not supported on this system: %w", path, errors.ErrUnsupported)
}

// Traces returns none.
func Traces(string) []string { return nil }

// Commit does nothing.
func (*Placed) Commit(context.Context) error { return nil }

// Withdraw does nothing.
func (*Placed) Withdraw(context.Context) (restored bool, err error) { return false, nil }
