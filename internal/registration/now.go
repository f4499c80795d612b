package registration

import (
	"errors"
	"io"
	"syscall"
)

// readNow reads without blocking. It returns errNotNow if there is nothing to read.
func readNow(raw syscall.RawConn, p []byte) (int, error) {
	n, err := now(raw, func(fd int) (int, error) { return syscall.Read(fd, p) })
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return 0, errNotNow
	case err == nil && n == 0 && len(p) > 0:
		return 0, io.EOF
	default:
		return n, err
	}
}

func writeNow(raw syscall.RawConn, p []byte) (int, error) {
	return now(raw, func(fd int) (int, error) { return syscall.Write(fd, p) })
}

// now makes a system call that does not block, without regard to the deadline of the connection.
func now(raw syscall.RawConn, call func(fd int) (int, error)) (n int, err error) {
	closed := raw.Control(func(fd uintptr) {
		for n, err = call(int(fd)); errors.Is(err, syscall.EINTR); {
			n, err = call(int(fd))
		}
	})
	if closed != nil {
		return 0, closed
	}
	return max(n, 0), err
}
