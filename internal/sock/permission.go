package sock

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// euid is the user of this process, which does not change.
var euid = uint32(os.Geteuid())

// MayConnect returns an error that wraps [fs.ErrPermission] if this process has no permission to connect to the socket that info describes.
// It makes no system call if the socket belongs to the user of this process.
func MayConnect(path string, info Info) error {
	const byOwner = 0o200
	if info.UID == euid && info.Mode&byOwner != 0 {
		return nil
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err == unix.EACCES {
		return &fs.PathError{Op: "connect", Path: path, Err: err}
	}
	return nil
}
