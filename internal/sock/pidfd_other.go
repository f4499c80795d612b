//go:build unix && !linux

package sock

import "net"

// hasEnded reports whether the process that serves conn has ended. Here nobody can tell.
func hasEnded(*net.UnixConn) bool { return false }
