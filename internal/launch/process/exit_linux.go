package process

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// exit tells when a child of this process ends, without holding a thread meanwhile.
type exit struct {
	pid   int
	pidfd *os.File // in the runtime's poller; nil before Linux 5.3
}

// newExit takes over pidfd, which is negative if there is none.
func newExit(pid, pidfd int) exit {
	if pidfd < 0 {
		return exit{pid: pid}
	}
	_ = unix.SetNonblock(pidfd, true) // tells os.NewFile to use the poller
	return exit{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd")}
}

// await blocks until the child has ended, and leaves it to be waited for.
func (e exit) await() {
	if e.pidfd != nil {
		if raw, err := e.pidfd.SyscallConn(); err == nil {
			if raw.Read(func(fd uintptr) bool { return events(int(fd), unix.POLLIN) != 0 }) == nil {
				return
			}
		}
	}
	for {
		if err := unix.Waitid(unix.P_PID, e.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// signalGroup sends a signal to the group whose ID is that of the child. It fails on systems that cannot do that through a pidfd.
func (e exit) signalGroup(sig syscall.Signal) error {
	if e.pidfd == nil {
		return unix.ENOSYS
	}
	return control(e.pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, signalGroup) })
}

// prepareWait must come before the child is waited for: the mode of the descriptor is shared with the one in its os.Process, which blocks.
func (e exit) prepareWait() {
	if e.pidfd != nil {
		_ = control(e.pidfd, func(fd int) error { return unix.SetNonblock(fd, false) })
	}
}

func (e exit) close() {
	if e.pidfd != nil {
		_ = e.pidfd.Close()
	}
}
