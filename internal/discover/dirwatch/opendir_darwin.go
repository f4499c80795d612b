package dirwatch

import (
	"os"
	"syscall"
)

// openDir opens a directory for reading, and nothing else that may have taken its place: not what a symbolic link points to, unless follow
// is set, and no named pipe, which would block.
func openDir(path string, follow bool, _ uint64) (*os.File, error) {
	flags := os.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NONBLOCK
	if !follow {
		flags |= syscall.O_NOFOLLOW
	}
	return os.OpenFile(path, flags, 0)
}
