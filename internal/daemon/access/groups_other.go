//go:build !linux

package access

import "net"

// supplementaryGroups returns none: on this system only the primary group of a caller counts.
func supplementaryGroups(*net.UnixConn) ([]uint32, error) { return nil, nil }
