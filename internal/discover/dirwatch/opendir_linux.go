package dirwatch

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// openDir opens a directory of a mount for reading, and nothing else that may have taken its place: not what a symbolic link points to,
// unless follow is set, no named pipe, and nothing that was mounted there since, which may not answer.
func openDir(path string, follow bool, mount uint64) (*os.File, error) {
	// gofail: var dirwatchOpen int
	// return nil, &os.PathError{Op: "open", Path: path, Err: unix.Errno(dirwatchOpen)}
	flags := unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	place, err := openAt(unix.AT_FDCWD, path, flags)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(place) }() // nothing was written
	if e, err := sock.StatFile(place); err != nil || e.Mount != mount {
		return nil, &os.PathError{Op: "open", Path: path, Err: errRemounted}
	}
	fd, err := openAt(place, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openAt opens a file, however often a signal interrupts that.
func openAt(dir int, path string, flags int) (int, error) {
	for {
		if fd, err := unix.Openat(dir, path, flags, 0); err != unix.EINTR { //nolint:errorlint // it is never wrapped
			return fd, err
		}
	}
}
