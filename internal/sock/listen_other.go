//go:build !unix

package sock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// Listener is a listening socket that owns its path. There is none on this system.
type Listener struct{ net.Listener }

// Listen is not supported on this system: the error wraps [errors.ErrUnsupported].
func Listen(path string, _ fs.FileMode) (*Listener, error) {
	return nil, fmt.Errorf("cannot listen on %s: Unix sockets with an owner are not supported on this system: %w", path, errors.ErrUnsupported)
}

// IsServed reports true: nobody can tell.
func IsServed(string) bool { return true }

// HoldDir is not supported on this system: the error wraps [errors.ErrUnsupported].
func HoldDir(path string) (*os.File, error) {
	return nil, fmt.Errorf("cannot lock %s: %w", path, errors.ErrUnsupported)
}
