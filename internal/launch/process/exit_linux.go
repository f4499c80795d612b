package process

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// exit tells when a child of this process ends, without holding a thread meanwhile.
type exit struct {
	pid      int
	pidfd    *os.File // in the runtime's poller
	noGroups bool     // tests see to it that groups are not signalled through it, as before Linux 6.9
}

// newExit takes over pidfd.
func newExit(pid, pidfd int) exit {
	_ = unix.SetNonblock(pidfd, true) // tells os.NewFile to use the poller
	return exit{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd")}
}

// await blocks until the child has ended, and leaves it to be waited for.
func (e exit) await() {
	if raw, err := e.pidfd.SyscallConn(); err == nil {
		if raw.Read(func(fd uintptr) bool { return events(int(fd), unix.POLLIN) != 0 }) == nil {
			return
		}
	}
	for { // it could not be put into the poller
		if err := unix.Waitid(unix.P_PID, e.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// signalGroup sends a signal to the group whose ID is that of the child. It fails before Linux 6.9, which cannot do that through a pidfd.
func (e exit) signalGroup(sig syscall.Signal) error {
	if e.noGroups {
		return unix.EINVAL
	}
	return control(e.pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, signalGroup) })
}

// wait waits for a child that has ended. The mode of the descriptor is shared with the one in its os.Process, which blocks.
func (e exit) wait(proc *os.Process) (*os.ProcessState, error) {
	_ = control(e.pidfd, func(fd int) error { return unix.SetNonblock(fd, false) })
	return proc.Wait()
}

// signalGroup is PIDFD_SIGNAL_PROCESS_GROUP: the signal goes to the group that has the process' ID, even if the process itself is gone.
// Linux 6.9 and later know it.
const signalGroup = 1 << 2

// kill sends SIGKILL to exactly this process and reports whether it was there.
func (id procID) kill() bool {
	pidfd, err := id.open()
	if err != nil {
		return false
	}
	defer unix.Close(pidfd)
	return unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) == nil
}

// open returns a pidfd of exactly this process.
func (id procID) open() (int, error) {
	pidfd, err := unix.PidfdOpen(id.pid, 0)
	if err != nil {
		return -1, err
	}
	// Read after the open: had the ID passed on before it, the time would be another one.
	if s, ok := readStat(id.pid); !ok || s.start != id.start {
		return -1, errors.Join(unix.ESRCH, unix.Close(pidfd))
	}
	return pidfd, nil
}

// killAll kills each of the processes and returns the IDs of those that were there.
func killAll(ids []procID) []int {
	var killed []int
	for _, id := range ids {
		if id.kill() {
			killed = append(killed, id.pid)
		}
	}
	return killed
}
