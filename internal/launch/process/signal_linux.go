package process

import (
	"errors"

	"golang.org/x/sys/unix"
)

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
