package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
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

// platform is what a [Group] has on this system. It comes to be with the first process.
type platform struct {
	mu      sync.Mutex // guards what follows, until opened is set; it is read only from then on
	opened  bool
	remains []string // what is removed if the host dies; guarded by mu all the time
	forker  *thread
	strict  *thread // the same for processes that gain no privileges; guarded by mu all the time, nil until one is needed
	guard   *guard
	cgroup  *cgroup // nil if there is none

	inherited inherited

	noGroups bool // tests see to it that groups are not signalled through a pidfd, as before Linux 6.9

	last   atomic.Uint64          // the name of the last leaf
	spare  atomic.Pointer[cgroup] // the leaf of the next process
	leaves sync.WaitGroup         // goroutines that make the spare leaf, and remove leaves that were not empty when their process had ended
}

func (pl *platform) open(cfg Config) error {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.opened {
		return nil
	}
	var dir string
	if cfg.Cgroup != noCgroup {
		c, err := newCgroup(cfg.Cgroup)
		switch {
		case err == nil:
			pl.cgroup, dir = &c, c.dir
		case cfg.Cgroup != "":
			return fmt.Errorf("make a cgroup for the processes in %s: %w", cfg.Cgroup, err)
		default:
			cfg.Logger.Info("no cgroup for processes: each has reapers instead, small processes that are its parents", "error", err)
		}
	}
	guard, err := newGuard(cfg.Logger, dir)
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
	// What this process inherited is not for those that it starts: they get what is meant for them. What Go opens is never inherited.
	const first = 3
	if err := unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep descriptors from being inherited (close_range, which a filter of system calls may refuse): %w", err)
	}
	if p.spec.Survive {
		return startKept(g, p)
	}
	if err := pl.open(g.cfg); err != nil {
		return err
	}
	c := &child{group: g, process: p, id: pl.guard.last.Add(1), purpose: pl.inherited.purpose(p.spec.Limits)}
	if pl.cgroup != nil {
		var err error
		if c.leaf, err = pl.leaf(); err != nil {
			g.cfg.Logger.Warn("no cgroup for a process", "name", p.spec.Name, "error", err)
		}
	}
	if err := c.start(); err != nil {
		return err
	}
	pl.leaves.Go(pl.makeSpare)
	p.pid, p.body = c.pid, c
	return nil
}

// leaf returns a cgroup for a process: the spare one, unless there is none or a stranger removed it.
func (pl *platform) leaf() (*cgroup, error) {
	if leaf := pl.spare.Swap(nil); leaf != nil && unix.Access(leaf.dir, unix.F_OK) == nil {
		return leaf, nil
	}
	return pl.cgroup.leaf(strconv.FormatUint(pl.last.Add(1), 10))
}

// makeSpare makes the cgroup of the next process, which would hold that up for longer than all else before it is forked. An error is left
// to that.
func (pl *platform) makeSpare() {
	if pl.cgroup == nil || pl.spare.Load() != nil {
		return
	}
	leaf, err := pl.cgroup.leaf(strconv.FormatUint(pl.last.Add(1), 10))
	if err == nil && !pl.spare.CompareAndSwap(nil, leaf) {
		_ = leaf.remove()
	}
}

// remove adds to what is removed if the host dies.
func (pl *platform) remove(paths []string) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.remains = append(pl.remains, paths...)
	if pl.opened {
		pl.guard.start(hostID, pl.remains, nil)
	}
}

// thread returns the thread that forks. Whether privileges can be gained is inherited from it, and cannot be taken back.
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

// forbidPrivs keeps what this thread starts from gaining privileges.
func forbidPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// close ends the watchdog and what else is there. All processes have ended.
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

// MayChangeUser says whether processes can be started as other users, and ended: by root, and with CAP_SETUID, CAP_SETGID and CAP_KILL.
func MayChangeUser() bool {
	if os.Geteuid() == 0 {
		return true
	}
	const needed = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&needed == needed
}

// removeAll removes what [Spec].Remove lists, in this order, and reports whether no busy one is left. A busy one is a cgroup of version 1
// with processes in it, or a socket on which one accepts, for whose ends it waits at most so long.
func removeAll(paths []string, sockets map[string]plugin.SocketID, atMost time.Duration) bool {
	for deadline := time.Now().Add(atMost); ; {
		paths = slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return !errors.Is(removeOne(path, sockets[path]), unix.EBUSY) })
		if len(paths) == 0 {
			return true
		}
		if !time.Now().Before(deadline) {
			return false
		}
		const pause = 10 * time.Millisecond
		<-time.After(pause) //nolint:forbidigo // nothing tells when a process has ended that is not a child
	}
}

// removeOne follows no symbolic link on the way: whoever may write to a directory could have it lead to somebody else's files. A socket
// that another process has bound at the path is not removed.
func removeOne(path string, socket plugin.SocketID) error {
	dir, name := filepath.Split(path)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	at, err := unix.Openat2(unix.AT_FDCWD, dir, &how)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if sock.IsAnothers(fmt.Sprintf("/proc/self/fd/%d/%s", at, name), socket) {
		if socket.IsZero() {
			return unix.EBUSY // it may be that of a process that is being killed
		}
		return nil
	}
	err = unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) { // which of them depends on the file system
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	return err
}

// Helpers are the program of the host, executed again under a name that nobody else uses, and with a variable in the environment; see
// docs/adr/0007.
// The name does not contain that of the host, so that whoever kills by name kills the host only.
const (
	helperName = "plugin-" // followed by the role
	helperEnv  = "PATCHBAY_PROCESS_HELPER"
)

const (
	roleWatchdog    = "watchdog"
	roleKeeper      = "keeper"
	roleLauncher    = "launcher" // starts a keeper and ends, so that the keeper is nobody's child
	roleReaper      = "reaper"
	roleOuterReaper = "reapers"
	roleShim        = "shim" // prepares itself and becomes the program of a process
)

// Before main: that of the host must not run again, and not even its flags be parsed.
func init() { //nolint:gochecknoinits // docs/adr/0007
	if len(os.Args) == 0 {
		return
	}
	role, ok := strings.CutPrefix(os.Args[0], helperName)
	if !ok || os.Getenv(helperEnv) != role {
		return
	}
	if role == roleShim { // which keeps its descriptors
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
	syscall.Exit(0) // not os.Exit: its hooks are those of the host's program
}

// detach makes this process independent of the one that started it: of its directory, of its descriptors but the first three, and of the
// signals that are meant for it.
func detach(role string) {
	_ = os.Chdir("/")
	for _, fd := range pids("/proc/self/fd") {
		// The host may have had descriptors that are inherited. The runtime's own are not, and must not be closed.
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && fd > syscall.Stderr && !strings.HasPrefix(target, "anon_inode:") {
			_ = unix.Close(fd)
		}
	}
	// Caught and not ignored: a program that is executed later would ignore them too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	_ = os.WriteFile("/proc/self/comm", []byte(helperName+role), 0) // for ps and top, which otherwise show "exe"
}

// startHelper starts this program again in a role, in a session of its own, with stdin as its only descriptor. It outlives this process.
func startHelper(role string, stdin *os.File) (exit, error) {
	// gofail: var processWatchdog string
	// return exit{}, fmt.Errorf("execute this program again as %s: %s", helperName+role, processWatchdog)
	pidfd := -1
	attr := &os.ProcAttr{
		// The collector runs often, which is cheap on so little.
		Env:   []string{helperEnv + "=" + role, "GOMAXPROCS=1", "GOGC=20"},
		Files: []*os.File{stdin, nil, nil},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	proc, err := startChild(func() (*os.Process, error) {
		return os.StartProcess("/proc/self/exe", []string{helperName + role}, attr)
	})
	if err != nil {
		return exit{}, fmt.Errorf("execute this program again as %s: %w", helperName+role, err)
	}
	return exitOf(proc, pidfd), nil
}
