package pluginlog

import (
	"os"

	"golang.org/x/sys/unix"
)

// growPipe tries to enlarge the buffer of a pipe. It does nothing if r is not a pipe, or if the user's limit of pipe buffers is reached
// (pipe(7), /proc/sys/fs/pipe-user-pages-soft).
func growPipe(r *os.File) {
	conn, err := r.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
}
