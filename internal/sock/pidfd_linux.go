package sock

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

func peerPidfd(conn *net.UnixConn) (int, error) {
	pidfd := -1
	err := Control(conn, func(fd int) (err error) {
		pidfd, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 6.5
			pidfd, err = pidfdByPID(fd)
		}
		return err
	})
	switch {
	case err == nil && ready(pidfd, unix.POLLIN):
		// Linux 6.16 and later also return a pidfd of a process that has ended.
		return -1, errors.Join(ErrNotVisible, unix.Close(pidfd))
	case err == nil:
		return pidfd, nil
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return -1, fmt.Errorf("watch the process behind a socket: %w", err)
	default:
		return -1, fmt.Errorf("%w: %w", ErrNotVisible, err)
	}
}

// hasEnded reports whether the process that serves conn has ended or is not visible.
func hasEnded(conn *net.UnixConn) bool {
	pidfd, err := peerPidfd(conn)
	if err == nil {
		_ = unix.Close(pidfd)
	}
	return errors.Is(err, ErrNotVisible)
}

// pidfdByPID opens the process by the PID in the peer's credentials. The PID may have been reused since it was recorded. It was not if the
// peer's end of the connection is still open afterwards, because the end of the process closes it. The start detects the rare case that a
// third process holds the connection open.
func pidfdByPID(fd int) (int, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, err
	}
	pidfd, err := openProcess(int(cred.Pid), Start(int(cred.Pid)))
	if err == nil && ready(fd, unix.POLLRDHUP) {
		return -1, errors.Join(unix.ESRCH, unix.Close(pidfd))
	}
	return pidfd, err
}

// openProcess returns a pidfd of the process with a PID and a start.
func openProcess(pid int, start uint64) (int, error) {
	if pid <= 0 || start == 0 {
		return -1, errors.New("it is in another PID namespace, or has ended")
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	is := numbered() && startOf(pidfd) == start
	if start&ofPidfs == 0 {
		is = startTime(pid) == start && !ready(pidfd, unix.POLLIN)
	}
	if !is { // the PID was reused, or the process has just ended
		return -1, errors.Join(unix.ESRCH, unix.Close(pidfd))
	}
	return pidfd, nil
}

// ready reports whether the events are pending: POLLRDHUP if the other end of a connection is closed, POLLIN if the process of a pidfd has
// ended. A descriptor that cannot be polled counts as ready.
func ready(fd int, events int16) bool {
	n, err := uninterrupted(func() (int, error) { return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0) })
	return err != nil || n > 0
}
