package access

import (
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// supplementaryGroups returns the supplementary groups of the peer process at the time it connected. They come from the kernel
// (SO_PEERGROUPS), because a service manager can give a process groups that the user database does not have.
func supplementaryGroups(conn *net.UnixConn) ([]uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	groups := make([]uint32, 32)
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		for {
			size := uint32(len(groups) * 4)
			_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
			if errno == unix.ERANGE && int(size/4) > len(groups) {
				groups = make([]uint32, size/4)
				continue
			}
			groups = groups[:min(int(size/4), len(groups))]
			return
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return nil, fmt.Errorf("ask the kernel for the groups of the caller: %w", err)
	}
	return groups, nil
}
