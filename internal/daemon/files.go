package daemon

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"
)

// openAnother opens another descriptor of standard input and closes it. The error is that there is none left.
func openAnother() error {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.EMFILE):
		return err
	default: // standard input is closed, which says nothing
		return nil
	}
}

func openFilesLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the least that systems give
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // its type depends on the system
}
