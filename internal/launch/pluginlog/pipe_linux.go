package pluginlog

import (
	"os"

	"golang.org/x/sys/unix"
)

// growPipe enlarges the buffer of a pipe. It is a help and no need: it fails on what is no pipe, and where the user's share of
// pipe buffers is used up (pipe(7), /proc/sys/fs/pipe-user-pages-soft).
func growPipe(r *os.File) {
	conn, err := r.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
}
