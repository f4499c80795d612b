//go:build !linux

package access

import "net"

// supplementaryGroups returns none: only the primary group of a caller counts on this system.
func supplementaryGroups(*net.UnixConn) ([]uint32, error) { return nil, nil }
