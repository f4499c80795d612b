package daemon

import (
	"errors"

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
	default: // standard input is closed, so the result is not known
		return nil
	}
}
