package launched

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openStdin returns standard input as a file whose reads can be interrupted, which those of os.Stdin cannot. It is a duplicate, so that
// closing it does not free descriptor 0 for something else.
func openStdin() (*os.File, error) {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("cannot read the host's handshake: standard input is not open: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot read the host's handshake from standard input: %w", err)
	}
	return os.NewFile(uintptr(fd), "stdin"), nil
}

// inherited returns a file that this process inherited, and that no other will.
func inherited(fd int, name string) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}
