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
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
	"github.com/patchbay-dev/patchbay/plugin"
)

// cgroup is a directory of a cgroup file system (version 2).
type cgroup struct {
	dir  string // in the file system
	path string // as in proc_pid_cgroup(5)
}

// newCgroup creates a cgroup with a unique name in parent or, if parent is empty, in the cgroup of this process.
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
	// Below a threaded cgroup, the type is "domain invalid", and the cgroup cannot contain processes.
	kind, err := os.ReadFile(filepath.Join(c.dir, "cgroup.type"))
	if err == nil && string(bytes.TrimSpace(kind)) != "domain" {
		err = fmt.Errorf("a cgroup in %s cannot hold processes: it is %s", parent, bytes.TrimSpace(kind))
	}
	if err != nil {
		return cgroup{}, errors.Join(err, os.Remove(c.dir))
	}
	return c, nil
}

// cgroupName returns a unique name.
func cgroupName() string { return "patchbay-" + strconv.Itoa(os.Getpid()) + "-" + rand.Text()[:8] }

// delegated returns the parent of dir if the parent was delegated to this process and dir was not. With DelegateSubgroup=, systemd puts a
// service into a group below its delegated one, because a group that contains processes cannot enable controllers for its children.
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

func (c cgroup) leaf(name string) (*cgroup, error) {
	l := &cgroup{dir: c.dir + "/" + name, path: c.path + "/" + name}
	// gofail: var processLeaf string
	// return nil, errors.New(processLeaf)
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		return nil, err
	}
	return l, nil
}

func (c cgroup) holds(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	of, ok := cgroupfs.UnifiedGroup(string(b))
	return ok && (of == c.path || strings.HasPrefix(of, c.path+"/"))
}

func (c cgroup) procs() []int {
	var list []int
	_ = filepath.WalkDir(c.dir, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(file) != "cgroup.procs" {
			return nil //nolint:nilerr // a removed cgroup has no processes
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

// kill sends SIGKILL to every process in the cgroup and below it, including processes that are being forked.
func (c cgroup) kill() error {
	// gofail: var processKill string
	// return errors.New(processKill)
	return os.WriteFile(c.dir+"/cgroup.kill", []byte("1"), 0)
}

// remove removes the cgroup and the cgroups in it. It fails while one of them contains a process.
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

// clear kills the processes in the cgroup and removes it when it is empty. It blocks until then, for at most the given time, and retries
// while no files can be opened.
func (c cgroup) clear(atMost time.Duration) error {
	events := -1
	defer func() { _ = unix.Close(events) }()
	buf := make([]byte, 256)
	for deadline := time.Now().Add(atMost); ; {
		if events < 0 {
			var err error
			if events, err = unix.Open(c.dir+"/cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0); errors.Is(err, unix.ENOENT) {
				return nil
			}
		}
		if events >= 0 {
			// Read first: the kernel reports each change after a read.
			if _, err := unix.Pread(events, buf, 0); err != nil {
				return ignore(err, unix.ENODEV)
			}
		}
		_ = c.kill()
		err := c.remove()
		if err == nil {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("remove the cgroup %s: %w", c.dir, err)
		}
		// There is no event if a process had ended but was not yet removed from the cgroup, so the wait is bounded.
		const atMostOnce = 50 * time.Millisecond
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(events), Events: unix.POLLPRI}}, int(min(left, atMostOnce).Milliseconds())+1)
	}
}

// setting is one value in a file of a cgroup. The file of an optional setting may be missing.
type setting struct {
	file, value string
	optional    bool
}

// controller sets one limit, in either version of cgroups.
type controller struct {
	name   string
	wanted func(plugin.Limits) int64
	v2, v1 func(amount int64) []setting
}

const (
	period   = 100_000 // microseconds, the kernel's own default
	minQuota = 1_000   // the kernel's minimum
)

var controllers = []controller{
	{
		name:   "memory",
		wanted: func(l plugin.Limits) int64 { return l.Memory },
		// Swap counts as memory; its files exist only if the kernel accounts for swap.
		v2: func(bytes int64) []setting {
			return []setting{{file: "memory.max", value: decimal(bytes)}, {file: "memory.swap.max", value: "0", optional: true}}
		},
		v1: func(bytes int64) []setting { // in this order: the second must not be below the first
			return []setting{
				{file: "memory.limit_in_bytes", value: decimal(bytes)},
				{file: "memory.memsw.limit_in_bytes", value: decimal(bytes), optional: true},
			}
		},
	},
	{
		name:   "pids",
		wanted: func(l plugin.Limits) int64 { return int64(l.Processes) },
		v2:     func(n int64) []setting { return []setting{{file: "pids.max", value: decimal(n)}} },
		// One more for the thread that forks; see limitProcesses.
		v1: func(n int64) []setting { return []setting{{file: "pids.max", value: decimal(n + 1)}} },
	},
	{
		name:   "cpu",
		wanted: func(l plugin.Limits) int64 { return l.CPU },
		v2: func(milli int64) []setting {
			return []setting{{file: "cpu.max", value: quota(milli) + " " + decimal(period)}}
		},
		v1: func(milli int64) []setting {
			return []setting{{file: "cpu.cfs_period_us", value: decimal(period)}, {file: "cpu.cfs_quota_us", value: quota(milli)}}
		},
	},
}

func isGrouped(l plugin.Limits) bool {
	return slices.ContainsFunc(controllers, func(c controller) bool { return c.wanted(l) > 0 })
}

// quota returns the microseconds of each period for an amount of processors in thousandths.
func quota(milli int64) string { return decimal(max(milli*(period/1000), minQuota)) }

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// confine sets the limits that cgroups enforce. The leaf is the process's cgroup of version 2, nil if it has none. For controllers that
// version 2 does not have, confine creates groups of version 1 with the given name. The caller must fork the process in them and remove
// them after the process. They are returned with an error, too.
func confine(system cgroupfs.System, leaf *cgroup, name string, l plugin.Limits) (v1 []string, err error) {
	for _, c := range controllers {
		amount := c.wanted(l)
		if amount <= 0 {
			continue
		}
		refused := errors.New("the process has no cgroup of version 2")
		if leaf != nil {
			if refused = leaf.enable(c.name); refused == nil {
				if err := apply(leaf.dir, c.v2(amount)); err != nil {
					return v1, fmt.Errorf("limit %s: %w", c.name, err)
				}
				continue
			}
		}
		place, has := system.V1[c.name]
		if !has {
			return v1, fmt.Errorf("%s cannot be limited here, where the cgroups are %s: %w", c.name, system.Kind(), refused)
		}
		dir, err := place.Dir()
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir) // a controller's hierarchy often has more than one name
		}
		if err == nil {
			if dir = filepath.Join(dir, name); !slices.Contains(v1, dir) { // one hierarchy may have both controllers
				if err = os.Mkdir(dir, 0o755); err == nil {
					v1 = append(v1, dir)
				}
			}
		}
		if err == nil {
			err = apply(dir, c.v1(amount))
		}
		if err != nil {
			return v1, fmt.Errorf("limit %s by cgroups of version 1: %w", c.name, err)
		}
	}
	return v1, nil
}

// enable enables a controller for the group, in its parent, which is the cgroup of the host, and in the parent's parent.
func (c cgroup) enable(controller string) error {
	if slices.Contains(cgroupfs.Controllers(c.dir), controller) {
		return nil
	}
	group := filepath.Dir(c.dir)
	above := filepath.Dir(group)
	if !slices.Contains(cgroupfs.Controllers(above), controller) {
		return fmt.Errorf("the cgroup %s does not have the controller %s (in systemd, Delegate=yes delegates all)", above, controller)
	}
	for _, dir := range []string{above, group} {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("the cgroup %s contains processes, and so cannot pass on the controller %s: run the host in a group below "+
				"it (in systemd, Delegate=yes with DelegateSubgroup=), or give it an empty one: %w", dir, controller, err)
		}
		if err != nil {
			return fmt.Errorf("pass on the controller %s: %w", controller, err)
		}
	}
	return nil
}

func apply(dir string, settings []setting) error {
	for _, s := range settings {
		file := filepath.Join(dir, s.file)
		if s.optional && unix.Access(file, unix.W_OK) != nil {
			continue
		}
		if err := os.WriteFile(file, []byte(s.value), 0o644); err != nil {
			return fmt.Errorf("set %s to %s: %w", s.file, s.value, err)
		}
	}
	return nil
}

// runInGroups runs f while this thread is in groups of version 1, so that processes that f forks start in them.
func runInGroups(groups []string, f func() error) error {
	enter := func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0); err != nil {
			return fmt.Errorf("move a thread into the cgroup %s: %w", dir, err)
		}
		return nil
	}
	back := func() (err error) {
		for _, dir := range groups {
			err = errors.Join(err, enter(filepath.Dir(dir))) // the group of this process, in which dir was made
		}
		return err
	}
	// The thread is in that group already. This checks that it may return: otherwise all later processes would start in the wrong groups.
	if err := back(); err != nil {
		return err
	}
	var err error
	for _, dir := range groups {
		err = errors.Join(err, enter(dir))
	}
	if err == nil {
		err = f()
	}
	return errors.Join(err, back())
}

// limitProcesses sets the final limit of processes. Until now, the limit had room for the thread that forked the process and for the
// threads of the shim.
func (c *child) limitProcesses() error {
	limits := c.process.spec.Limits
	if limits.Processes <= 0 || len(c.v1) == 0 && c.purpose == "" {
		return nil
	}
	groups := c.v1
	if c.leaf != nil {
		groups = slices.Concat(groups, []string{c.leaf.dir})
	}
	const file = "pids.max" // in one of them
	for _, dir := range groups {
		err := apply(dir, []setting{{file: file, value: strconv.Itoa(limits.Processes)}})
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("limit pids: no %s in %q", file, groups)
}
