package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// platform is what a [Group] has on this system. It comes to be with the first process.
type platform struct {
	mu     sync.Mutex // guards what follows, until opened is set; it is read only from then on
	opened bool
	forker *thread
	strict *thread // the same for processes that gain no privileges; guarded by mu all the time, nil until one is needed
	guard  *guard
	cgroup *cgroup // nil if there is none

	noGroups bool // see exit

	leaves sync.WaitGroup // goroutines that remove cgroups that were not empty when their process had ended
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
			cfg.Logger.Info("no cgroup for processes; descendants that leave their process group may escape", "error", err)
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
	if len(cfg.Remove) > 0 {
		guard.start(hostID, 0, pipes{}, cfg.Remove)
	}
	pl.guard, pl.forker, pl.opened = guard, newThread(), true
	return nil
}

func (pl *platform) start(g *Group, p *Process) error {
	if err := keepInherited(); err != nil {
		return err
	}
	if p.spec.Survive {
		return startKept(g, p)
	}
	if err := pl.open(g.cfg); err != nil {
		return err
	}
	c := &child{group: g, process: p, id: pl.guard.nextID()}
	if pl.cgroup != nil {
		leaf, err := pl.cgroup.leaf(strconv.FormatUint(c.id, 10))
		if err == nil {
			c.leaf = &leaf
		} else {
			g.cfg.Logger.Warn("no cgroup for a process", "name", p.spec.Name, "error", err)
		}
	}
	if err := c.start(); err != nil {
		return err
	}
	p.pid, p.body = c.pid, c
	return nil
}

// keepInherited keeps what this process inherited from being inherited by those that it starts: they get what is meant for them. What Go
// opens is never inherited.
func keepInherited() error {
	const first = 3
	if err := unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep descriptors from being inherited (close_range, which a filter of system calls may refuse): %w", err)
	}
	return nil
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
		t.do(func() { err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
		if err != nil {
			t.close()
			return nil, fmt.Errorf("set no_new_privs: %w", err)
		}
		pl.strict = t
	}
	return pl.strict, nil
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

// dropAmbient keeps what this thread starts from inheriting the capabilities that the process was given for itself, with
// AmbientCapabilities= of systemd for example. This process keeps them.
func dropAmbient() {
	// It fails only on systems that have none.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}

// removeAll removes what [Spec].Remove lists, in this order, and reports whether no busy one is left. A busy one is a cgroup of version 1
// with processes in it, for whose ends it waits at most so long; nothing tells when such a group becomes empty.
func removeAll(paths []string, atMost time.Duration) bool {
	for deadline := time.Now().Add(atMost); ; {
		paths = slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return !errors.Is(removeOne(path), unix.EBUSY) })
		if len(paths) == 0 {
			return true
		}
		if !time.Now().Before(deadline) {
			return false
		}
		const pause = 10 * time.Millisecond
		<-time.After(pause)
	}
}

// removeOne follows no symbolic link on the way: whoever may write to a directory could have it lead to somebody else's files.
func removeOne(path string) error {
	dir, name := filepath.Split(path)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	at, err := unix.Openat2(unix.AT_FDCWD, dir, &how)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	err = unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) { // which of them depends on the file system
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	return err
}
