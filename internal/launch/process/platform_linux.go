package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// platform is the state of a [Group] on Linux. The first process opens it.
type platform struct {
	mu      sync.Mutex // guards remains and strict, and the other fields until opened is set; they do not change afterwards
	opened  bool
	remains []string // files that the watchdog removes if the host is killed
	forker  *thread
	strict  *thread // forks processes with NoNewPrivs; nil until needed
	guard   *guard
	cgroup  *cgroup // nil if there is none

	inherited inherited

	noGroups bool // in tests: do not signal groups through a pidfd, as before Linux 6.9

	last   atomic.Uint64          // the name of the last leaf
	spare  atomic.Pointer[cgroup] // the leaf of the next process
	leaves sync.WaitGroup         // goroutines that create the spare leaf, and remove leaves that were busy
}

func (pl *platform) open(g *Group) error {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.opened {
		return nil
	}
	var dir string
	if g.Cgroup != noCgroup {
		c, err := newCgroup(g.Cgroup)
		switch {
		case err == nil:
			pl.cgroup, dir = &c, c.dir
		case g.Cgroup != "":
			return fmt.Errorf("make a cgroup for the processes in %s: %w", g.Cgroup, err)
		default:
			g.Logger.Info("no cgroup for processes: each has a small parent process instead, a reaper", "error", err)
		}
	}
	guard, err := newGuard(g.Logger, dir)
	if err != nil {
		if pl.cgroup != nil {
			_ = pl.cgroup.remove()
			pl.cgroup = nil
		}
		return fmt.Errorf("start the watchdog of the processes: %w", err)
	}
	guard.start(hostID, pl.remains, nil)
	pl.guard, pl.forker, pl.inherited, pl.opened = guard, newThread(), readInherited(), true
	return nil
}

func (pl *platform) start(g *Group, p *Process) error {
	// Children must not inherit descriptors that this process has inherited. Descriptors that Go opens are never inherited.
	const first = 3
	if err := unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep descriptors from being inherited (close_range, which a filter of system calls may refuse): %w", err)
	}
	if p.spec.Survive {
		return startKept(g, p)
	}
	if err := pl.open(g); err != nil {
		return err
	}
	c := &child{group: g, process: p, id: pl.guard.last.Add(1), purpose: pl.inherited.purpose(p.spec.Limits)}
	if pl.cgroup != nil {
		var err error
		if c.leaf, err = pl.leaf(); err != nil {
			g.Logger.Warn("no cgroup for a process", "name", p.spec.Name, "error", err)
		}
	}
	if err := c.start(); err != nil {
		return err
	}
	pl.leaves.Go(pl.makeSpare)
	p.pid, p.body = c.pid, c
	return nil
}

// leaf returns a cgroup for a process: the spare one or, if there is none or another program has removed it, a new one.
func (pl *platform) leaf() (*cgroup, error) {
	if leaf := pl.spare.Swap(nil); leaf != nil && unix.Access(leaf.dir, unix.F_OK) == nil {
		return leaf, nil
	}
	return pl.cgroup.leaf(strconv.FormatUint(pl.last.Add(1), 10))
}

// makeSpare creates the cgroup of the next process in advance, because that is the slowest step before the fork. After an error, leaf tries
// again.
func (pl *platform) makeSpare() {
	if pl.cgroup == nil || pl.spare.Load() != nil {
		return
	}
	leaf, err := pl.cgroup.leaf(strconv.FormatUint(pl.last.Add(1), 10))
	if err == nil && !pl.spare.CompareAndSwap(nil, leaf) {
		_ = leaf.remove()
	}
}

// remove adds files that the watchdog removes if the host is killed.
func (pl *platform) remove(paths []string) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.remains = append(pl.remains, paths...)
	if pl.opened {
		pl.guard.start(hostID, pl.remains, nil)
	}
}

// thread returns the thread that forks. Processes inherit no_new_privs from it, which cannot be reset.
func (pl *platform) thread(noNewPrivs bool) (*thread, error) {
	if !noNewPrivs {
		return pl.forker, nil
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.strict == nil {
		t := newThread()
		var err error
		t.do(func() { err = forbidPrivs() })
		if err != nil {
			t.close()
			return nil, err
		}
		pl.strict = t
	}
	return pl.strict, nil
}

// forbidPrivs prevents processes of this thread from gaining privileges.
func forbidPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// close ends the threads and the watchdog and removes the cgroup, after all processes have ended.
func (pl *platform) close() error {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if !pl.opened {
		return nil
	}
	pl.forker.close()
	if pl.strict != nil {
		pl.strict.close()
	}
	pl.leaves.Wait()
	var err error
	if pl.cgroup != nil {
		err = pl.cgroup.clear(time.Second)
	}
	pl.guard.close()
	return err
}

// MayChangeUser reports whether this process can start and end processes of other users: as root, or with CAP_SETUID, CAP_SETGID and
// CAP_KILL.
func MayChangeUser() bool {
	if os.Geteuid() == 0 {
		return true
	}
	const needed = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&needed == needed
}

// removeAll removes files in this order and reports whether none was busy. A file is busy if it is a cgroup of version 1 with processes, or
// a socket on which a process accepts. It waits for these processes for at most the given time.
func removeAll(paths []string, sockets map[string]plugin.SocketID, atMost time.Duration) bool {
	for deadline := time.Now().Add(atMost); ; {
		if paths = removeOnce(paths, sockets); len(paths) == 0 {
			return true
		}
		if !time.Now().Before(deadline) {
			return false
		}
		const pause = 10 * time.Millisecond
		<-time.After(pause) //nolint:forbidigo // there is no event for the end of a process that is not a child
	}
}

// removeOnce removes files and returns those that are busy.
func removeOnce(paths []string, sockets map[string]plugin.SocketID) (busy []string) {
	for len(paths) > 0 {
		dir, n := filepath.Dir(paths[0]), 1
		for n < len(paths) && filepath.Dir(paths[n]) == dir {
			n++
		}
		busy = append(busy, removeIn(dir, paths[:n], sockets)...)
		paths = paths[n:]
	}
	return busy
}

// removeIn is removeOnce for the files of one directory, which it reaches without following symbolic links: they could lead to files of
// other users.
func removeIn(dir string, paths []string, sockets map[string]plugin.SocketID) (busy []string) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	at, err := unix.Openat2(unix.AT_FDCWD, dir, &how)
	if err != nil {
		return nil // nothing is there
	}
	defer unix.Close(at)
	for _, path := range paths {
		if errors.Is(removeAt(at, filepath.Base(path), sockets[path]), unix.EBUSY) {
			busy = append(busy, path)
		}
	}
	return busy
}

// removeAt removes a file in a directory, unless it is a socket of another process.
func removeAt(dir int, name string, socket plugin.SocketID) error {
	anothers, err := sock.IsAnothers(fmt.Sprintf("/proc/self/fd/%d/%s", dir, name), socket)
	if err != nil {
		return err
	}
	if anothers {
		if socket.IsZero() {
			return unix.EBUSY // the process may be being killed
		}
		return nil
	}
	err = unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) { // it depends on the file system
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	return err
}

// A helper is the program of the host, executed again under a special name and with a variable in the environment; see docs/adr/0007. The
// name does not contain that of the host, so that killall by the host's name does not kill helpers.
const (
	helperName = "plugin-" // followed by the role
	helperEnv  = "PATCHBAY_PROCESS_HELPER"
)

const (
	roleWatchdog    = "watchdog"
	roleKeeper      = "keeper"
	roleLauncher    = "launcher" // starts a keeper and exits, so that the keeper is not a child of the host
	roleReaper      = "reaper"
	roleOuterReaper = "reapers"
	roleShim        = "shim" // sets its attributes and executes the program of a process
)

// init runs a helper before main, so that the host's main function and its flags are not used.
func init() { //nolint:gochecknoinits // docs/adr/0007
	if len(os.Args) == 0 {
		return
	}
	role, ok := strings.CutPrefix(os.Args[0], helperName)
	if !ok || os.Getenv(helperEnv) != role {
		return
	}
	if role == roleShim { // before detach, because it keeps its descriptors
		runShim(os.Args[1:])
		syscall.Exit(1)
	}
	detach(role)
	switch role {
	case roleWatchdog:
		w := newGuardedProcesses()
		w.listen(os.Stdin) // until the host has ended
		w.endAll()
	case roleKeeper:
		runKeeper()
	case roleOuterReaper:
		runOuterReaper()
	case roleReaper:
		runReaper()
	case roleLauncher:
		if _, err := startHelper(roleKeeper, os.NewFile(0, "host")); err != nil {
			syscall.Exit(1)
		}
	}
	syscall.Exit(0) // os.Exit would run exit hooks of the host's program
}

// detach makes this process independent of the one that started it: it leaves the working directory, closes all but the first three
// descriptors, and ignores signals that are meant for the other process.
func detach(role string) {
	_ = os.Chdir("/")
	for _, fd := range pids("/proc/self/fd") {
		// Close inherited descriptors, but not those of the Go runtime.
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && fd > syscall.Stderr && !strings.HasPrefix(target, "anon_inode:") {
			_ = unix.Close(fd)
		}
	}
	// Catch the signals: if they were ignored, a program that is executed later would ignore them, too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	_ = os.WriteFile("/proc/self/comm", []byte(helperName+role), 0) // for ps and top, which otherwise show "exe"
}

// startHelper starts this program again in a role, in its own session, with stdin as its only descriptor. The helper outlives this process.
func startHelper(role string, stdin *os.File) (exit, error) {
	// gofail: var processWatchdog string
	// return exit{}, fmt.Errorf("execute this program again as %s: %s", helperName+role, processWatchdog)
	const closed = ^uintptr(0)
	pidfd := -1
	pid, err := execute("/proc/self/exe", []string{helperName + role}, &syscall.ProcAttr{
		// The heap is small, so frequent garbage collection is cheap.
		Env:   []string{helperEnv + "=" + role, "GOMAXPROCS=1", "GOGC=20"},
		Files: []uintptr{stdin.Fd(), closed, closed},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		return exit{}, fmt.Errorf("execute this program again as %s: %w", helperName+role, err)
	}
	return newExit(pid, pidfd), nil
}
