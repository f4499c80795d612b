package dirwatch

import (
	"errors"
	"os"
	"syscall"
)

type mounts struct{ changed chan struct{} }

func openMounts() (*mounts, error) { return nil, errors.ErrUnsupported }

func (*mounts) close() {}

func fileSystemAt(string) string { return "" }

func hasAllEvents(*os.File) bool { return false }

// openDir opens a directory for reading. If something else is at path by now, it fails without blocking: a symbolic link, unless follow is
// set, or a named pipe.
func openDir(path string, follow bool, _ uint64) (*os.File, error) {
	flags := os.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NONBLOCK
	if !follow {
		flags |= syscall.O_NOFOLLOW
	}
	return os.OpenFile(path, flags, 0)
}
