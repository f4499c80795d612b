//go:build !linux && !darwin

package sock

import (
	"errors"
	"fmt"
	"net"
)

// PeerOf is not supported on this system: the error wraps [errors.ErrUnsupported].
func PeerOf(*net.UnixConn) (Peer, error) {
	return Peer{}, fmt.Errorf("the peer of a Unix socket is not known on this system: %w", errors.ErrUnsupported)
}

// BootID names this boot of the system, or is empty where the system has no name for it.
func BootID() string { return "" }
