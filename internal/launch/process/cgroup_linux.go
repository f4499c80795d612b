package process

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
)

// cgroup is a directory of a cgroup file system (version 2).
type cgroup struct {
	dir  string // in the file system
	path string // as in proc_pid_cgroup(5)
}

// newCgroup makes a cgroup with a name of its own in parent, or in the cgroup of this process if that is empty.
func newCgroup(parent string) (cgroup, error) {
	// gofail: var processCgroup string
	// return cgroup{}, errors.New(processCgroup)
	system, err := cgroupfs.Self()
	if err != nil {
		return cgroup{}, err
	}
	place := system.Unified
	if place == nil {
		return cgroup{}, errors.New("no cgroup file system of version 2 is mounted")
	}
	if parent == "" {
		if parent, err = place.Dir(); err != nil {
			return cgroup{}, err
		}
		parent = delegated(parent)
	}
	below, err := filepath.Rel(place.Mount, parent)
	if err != nil || !filepath.IsLocal(below) {
		return cgroup{}, fmt.Errorf("%s is not below %s, where cgroups of version 2 are", parent, place.Mount)
	}
	name := cgroupName()
	c := cgroup{dir: filepath.Join(parent, name), path: path.Join(place.Root, below, name)}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return cgroup{}, err
	}
	// The type is "domain invalid" below a threaded cgroup, into which no process can be put.
	kind, err := os.ReadFile(filepath.Join(c.dir, "cgroup.type"))
	if err == nil && string(bytes.TrimSpace(kind)) != "domain" {
		err = fmt.Errorf("a cgroup in %s can hold no processes: it is %s", parent, bytes.TrimSpace(kind))
	}
	if err != nil {
		return cgroup{}, errors.Join(err, os.Remove(c.dir))
	}
	return c, nil
}

// cgroupName returns a name that no other host has.
func cgroupName() string { return "patchbay-" + strconv.Itoa(os.Getpid()) + "-" + rand.Text()[:8] }

// delegated returns the parent of dir if that was delegated to this process and dir was not: systemd's DelegateSubgroup= puts a service
// into a group below the one that it may use, because one with processes in it cannot pass on controllers.
func delegated(dir string) string {
	marked := func(dir string) bool {
		for _, attribute := range []string{"trusted.delegate", "user.delegate"} {
			value := make([]byte, 1)
			if n, err := unix.Getxattr(dir, attribute, value); err == nil && n == 1 && value[0] == '1' {
				return true
			}
		}
		return false
	}
	if parent := filepath.Dir(dir); !marked(dir) && marked(parent) {
		return parent
	}
	return dir
}

// leaf makes a cgroup in c.
func (c cgroup) leaf(name string) (cgroup, error) {
	l := cgroup{dir: c.dir + "/" + name, path: c.path + "/" + name}
	// gofail: var processLeaf string
	// return l, errors.New(processLeaf)
	return l, os.Mkdir(l.dir, 0o755)
}

// holds reports whether the process is in the cgroup or below it.
func (c cgroup) holds(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	of, ok := cgroupfs.UnifiedGroup(string(b))
	return ok && (of == c.path || strings.HasPrefix(of, c.path+"/"))
}

// procs returns the processes in the cgroup and below it.
func (c cgroup) procs() []int {
	var list []int
	_ = filepath.WalkDir(c.dir, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(file) != "cgroup.procs" {
			return nil //nolint:nilerr // a cgroup that has gone has no processes
		}
		b, _ := os.ReadFile(file) // the same
		for field := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				list = append(list, pid)
			}
		}
		return nil
	})
	return list
}

// kill sends SIGKILL to every process in the cgroup and below it, also to those that are being forked.
func (c cgroup) kill() error {
	// gofail: var processKill string
	// return errors.New(processKill)
	return os.WriteFile(c.dir+"/cgroup.kill", []byte("1"), 0)
}

// remove removes the cgroup and those that were made in it. It fails while there is a process in one of them.
func (c cgroup) remove() error {
	// gofail: var processRemove string
	// return errors.New(processRemove)
	err := unix.Rmdir(c.dir)
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		return ignore(err, unix.ENOENT)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return ignore(err, unix.ENOENT)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := (cgroup{dir: filepath.Join(c.dir, entry.Name())}).remove(); err != nil {
				return err
			}
		}
	}
	return ignore(unix.Rmdir(c.dir), unix.ENOENT)
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// clear kills what is in the cgroup and removes it when it is empty, for which it waits at most so long.
func (c cgroup) clear(atMost time.Duration) error {
	events, err := unix.Open(c.dir+"/cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ignore(err, unix.ENOENT)
	}
	defer unix.Close(events)
	buf := make([]byte, 256)
	for deadline := time.Now().Add(atMost); ; {
		// Read before anything is done: the kernel tells of each change after a read.
		if _, err := unix.Pread(events, buf, 0); err != nil {
			return ignore(err, unix.ENODEV)
		}
		_ = c.kill()
		if err = c.remove(); err == nil {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("remove the cgroup %s: %w", c.dir, err)
		}
		// There is no event if only an ended process was not quite gone; hence the bound.
		const atMostOnce = 50 * time.Millisecond
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(events), Events: unix.POLLPRI}}, int(min(left, atMostOnce).Milliseconds())+1)
	}
}
