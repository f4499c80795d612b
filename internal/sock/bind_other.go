//go:build unix && !linux

package sock

import (
	"fmt"
	"net"
)

// bind listens on path.
func bind(path string) (*net.UnixListener, error) {
	if len(path) > MaxPath {
		return nil, fmt.Errorf("the temporary path %s has %d bytes and a socket's path may have %d; choose a shorter directory",
			path, len(path), MaxPath)
	}
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}
