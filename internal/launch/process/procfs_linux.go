package process

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// procID identifies a process: no other process of the same boot has the same ID and start.
type procID struct {
	pid   int
	start uint64 // in clock ticks after boot
}

// procStat has fields of proc_pid_stat(5).
type procStat struct {
	state         byte
	parent, group int
	start         uint64
}

func readStat(pid int) (procStat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(b)
}

// parseStat reads fields 3 to 5 and 22. The second, the command in parentheses, may itself contain spaces and parentheses, so the count
// starts behind the last closing one.
func parseStat(b []byte) (s procStat, ok bool) {
	const state, parent, group, start = 0, 1, 2, 22 - 3
	end := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[end+1:])
	if end < 0 || len(fields) <= start || len(fields[state]) != 1 || fields[state][0] < 'A' {
		return procStat{}, false
	}
	s.state = fields[state][0]
	var errs [3]error
	s.parent, errs[0] = strconv.Atoi(string(fields[parent]))
	s.group, errs[1] = strconv.Atoi(string(fields[group]))
	s.start, errs[2] = strconv.ParseUint(string(fields[start]), 10, 64)
	return s, errors.Join(errs[:]...) == nil
}

func (s procStat) alive() bool { return s.state != 'Z' && s.state != 'X' }

// now returns the current time in the unit of the start in proc_pid_stat(5).
func now() uint64 {
	const perTick = 10_000_000 // nanoseconds; USER_HZ is 100 on all architectures that Go supports
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano()) / perTick
}

func allStats() map[int]procStat {
	stats := map[int]procStat{}
	for _, pid := range pids("/proc") {
		if s, ok := readStat(pid); ok {
			stats[pid] = s
		}
	}
	return stats
}

func pids(dir string) (list []int) {
	entries, _ := os.ReadDir(dir) // none if the process has ended
	for _, entry := range entries {
		if n, err := strconv.Atoi(entry.Name()); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// descendants returns the running processes that descend from root or are in its process group. The root must not have been waited for, so
// that its ID is not reused.
func descendants(root int) []procID {
	stats := allStats()
	known := func(pid int) (procStat, bool) { s, ok := stats[pid]; return s, ok }
	var found []procID
	for pid, s := range stats {
		if pid == root || !s.alive() {
			continue
		}
		if s.group == root || descends(pid, s, root, known) {
			found = append(found, procID{pid, s.start})
		}
	}
	return found
}

// descends reports whether a process with the given stat descends from root, which must not have been waited for. It calls look for the
// stat of other processes.
func descends(pid int, s procStat, root int, look func(pid int) (procStat, bool)) bool {
	const deepest = 1000 // bounds a loop, which can appear if processes change while they are read
	for range deepest {
		if s.parent <= 1 {
			return false
		}
		parent, ok := look(s.parent)
		// Check that the parent has not changed: otherwise look may have returned another process with the same ID.
		again, still := look(pid)
		if !ok || !still || again.start != s.start || again.parent != s.parent {
			return false
		}
		if s.parent == root {
			return true
		}
		pid, s = s.parent, parent
	}
	return false
}

// belongs reports whether a process is in a process group or a cgroup, or descends from root. The IDs must not have been reused.
func belongs(pid, group, root int, leaf *cgroup) bool {
	if pid == group || leaf != nil && leaf.holds(pid) {
		return true
	}
	s, ok := readStat(pid)
	return ok && (s.group == group || descends(pid, s, root, readStat))
}

// Descends reports whether a process descends from another one. If either has ended, its ID may be that of another process.
func Descends(pid, from int) bool {
	s, ok := readStat(pid)
	return ok && descends(pid, s, from, readStat)
}

// exit waits for the end of a child of this process without blocking a thread.
type exit struct {
	pid   int
	pidfd *os.File // in the runtime's poller
}

func newExit(pid, pidfd int) exit {
	setNonblock(pidfd)
	return exit{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd")}
}

// setNonblock sets the only flag of a descriptor. It tells os.NewFile to use the runtime's poller.
func setNonblock(fd int) { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK) }

// await blocks until the child has ended. It does not reap the child.
func (e exit) await() {
	if raw, err := e.pidfd.SyscallConn(); err == nil {
		if raw.Read(func(fd uintptr) bool { return events(int(fd), unix.POLLIN) != 0 }) == nil {
			return
		}
	}
	for { // the pidfd could not be added to the poller
		if err := unix.Waitid(unix.P_PID, e.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// wait reaps the child. Its ID may be reused afterwards.
func (e exit) wait() (*os.ProcessState, error) {
	proc, err := os.FindProcess(e.pid)
	if err != nil {
		return nil, err
	}
	state, err := proc.Wait()
	forgetChild(e.pid)
	return state, err
}

// signal sends a signal to the child unless it was reaped.
func (e exit) signal(sig unix.Signal) {
	_ = sock.Control(e.pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
}

// signalGroup is PIDFD_SIGNAL_PROCESS_GROUP, which sends a signal to the group with the process's ID, even after the process has ended. It
// needs Linux 6.9.
const signalGroup = 1 << 2

// kill sends SIGKILL to exactly this process and reports whether it existed.
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
	// Compare the start after the open: it differs if the ID was reused before.
	if s, ok := readStat(id.pid); !ok || s.start != id.start {
		return -1, errors.Join(unix.ESRCH, unix.Close(pidfd))
	}
	return pidfd, nil
}

func killAll(ids []procID) []int {
	var killed []int
	for _, id := range ids {
		if id.kill() {
			killed = append(killed, id.pid)
		}
	}
	return killed
}
