package sock

import (
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// euid returns the user of this process, which does not change after the first call.
var euid = sync.OnceValue(func() uint32 { return uint32(os.Geteuid()) })

// MayConnect returns an error that wraps [fs.ErrPermission] if this process has no permission to connect to the socket that info describes.
// It makes no system call if the socket belongs to the user of this process.
func MayConnect(path string, info Info) error {
	const byOwner = 0o200
	if info.UID == euid() && info.Mode&byOwner != 0 {
		return nil
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err == unix.EACCES {
		return &fs.PathError{Op: "connect", Path: path, Err: err}
	}
	return nil
}
