package process

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup returns the attributes of a process in a session of its own, which is a process group too and has no terminal.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// signalOwnGroup sends SIGKILL or SIGTERM to the group of a process that has not been waited for.
func signalOwnGroup(proc *os.Process, force bool) {
	if force {
		_ = unix.Kill(-proc.Pid, unix.SIGKILL)
		return
	}
	_ = unix.Kill(-proc.Pid, unix.SIGTERM)
	_ = unix.Kill(-proc.Pid, unix.SIGCONT) // what is stopped would not see it
}

// awaitExit blocks until the process has ended, and leaves it to be waited for, so that its ID is its own until then. It reports whether it
// could.
func awaitExit(proc *os.Process) bool {
	queue, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer unix.Close(queue)
	var watch unix.Kevent_t
	unix.SetKevent(&watch, proc.Pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	watch.Fflags = unix.NOTE_EXIT
	changes, events := []unix.Kevent_t{watch}, make([]unix.Kevent_t, 1)
	for {
		// An error but EINTR means that it has ended already.
		if _, err := unix.Kevent(queue, changes, events, nil); err != unix.EINTR {
			return true
		}
	}
}
