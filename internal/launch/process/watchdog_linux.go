package process

import (
	"bufio"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ward is what a watchdog ends when its host has gone.
type ward struct {
	cgroup string
	procs  map[uint64]*warded
}

// warded is one process of the host.
type warded struct {
	since  uint64
	pipes  pipes
	remove []string
	pidfd  int // negative if the process is not known, and then so is what follows
	pid    int
	stat   procStat
}

// runWatchdog is the whole life of the watchdog: it listens to the host until that has gone, and then ends what the host has left.
func runWatchdog() {
	w := ward{procs: map[uint64]*warded{}}
	w.listen(descriptor(0))
	w.endAll()
}

// descriptor reads from a descriptor and blocks the thread meanwhile: there is nothing else to do.
type descriptor int

func (d descriptor) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// listen follows the records until there are no more. The last one may be cut short by the end of the host.
func (w *ward) listen(r io.Reader) {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if r, err := parseRecord(strings.TrimSuffix(line, "\n")); err == nil && len(r) > 1 {
			w.apply(r)
		}
	}
}

func (w *ward) apply(r record) {
	const files = 6
	id := r.number(1)
	switch known := w.procs[id]; {
	case r[0] == recordCgroup:
		w.cgroup = r[1]
	case r[0] == recordStart && len(r) >= files:
		w.procs[id] = &warded{since: r.number(2), pipes: pipes{r.number(3), r.number(4), r.number(5)}, remove: r[files:], pidfd: -1}
	case known == nil:
	case r[0] == recordPID:
		known.follow(int(r.number(2)))
	case r[0] == recordEnd:
		if known.pidfd >= 0 {
			_ = unix.Close(known.pidfd)
		}
		delete(w.procs, id)
	}
}

// follow opens the process, so that its group can be signalled even when it has ended and its ID has passed on.
func (p *warded) follow(pid int) {
	s, ok := readStat(pid)
	if !ok || s.start < p.since {
		return
	}
	if pidfd, err := (procID{pid, s.start}).open(); err == nil {
		p.pid, p.pidfd, p.stat = pid, pidfd, s
	}
}

// endAll ends all processes that have not ended, and leaves nothing of them.
func (w *ward) endAll() {
	group := cgroup{dir: w.cgroup}
	if w.cgroup != "" {
		_ = group.kill()
	}
	for _, p := range w.procs {
		p.kill()
	}
	const patience = 10 * time.Second // for a process that hangs in the kernel; what can end has ended long before
	var remains []string
	for _, p := range w.procs {
		_ = removeAll(p.remove, 0)
		remains = append(remains, p.remove...)
	}
	if w.cgroup != "" {
		_ = group.clear(patience)
	}
	_ = removeAll(remains, patience)
}

// kill ends a process that is in no cgroup, as far as it can be found.
func (p *warded) kill() {
	if p.pipes == (pipes{}) {
		return
	}
	if p.pidfd >= 0 {
		// The parent-death signal may have ended it already. If not, its ID is its own as long as it is there.
		left := descendants(p.pid)
		if unix.PidfdSendSignal(p.pidfd, 0, nil, 0) == nil {
			killAll(left)
		}
		if unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, signalGroup) == unix.EINVAL { // before Linux 6.9
			killAll(p.members())
		}
	}
	killAll(p.pipes.holders(p.since))
}

// members returns the process and what is in its group. That the group's ID might have passed on is excluded by the session, which is that
// of the host, and by the time.
func (p *warded) members() []procID {
	var found []procID
	for pid, s := range allStats() {
		if s.group == p.pid && s.session == p.stat.session && s.start >= p.since && s.alive() {
			found = append(found, procID{pid, s.start})
		}
	}
	return found
}
