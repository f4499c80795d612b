package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
)

// setting is one value in a file of a cgroup. One that is optional need not exist.
type setting struct {
	file, value string
	optional    bool
}

// controller sets one limit, in either version of cgroups.
type controller struct {
	name   string
	wanted func(Limits) int64
	v2, v1 func(amount int64) []setting
}

const (
	period   = 100_000 // microseconds, the kernel's own default
	minQuota = 1_000   // the least that the kernel takes
)

var controllers = []controller{
	{
		name:   "memory",
		wanted: func(l Limits) int64 { return l.Memory },
		// Swap is memory too; there are files for it only if it is accounted for.
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
		wanted: func(l Limits) int64 { return int64(l.Processes) },
		v2:     func(n int64) []setting { return []setting{{file: "pids.max", value: decimal(n)}} },
		// One more until the thread that forks has left the group again; see within.
		v1: func(n int64) []setting { return []setting{{file: "pids.max", value: decimal(n + 1)}} },
	},
	{
		name:   "cpu",
		wanted: func(l Limits) int64 { return l.CPU },
		v2: func(milli int64) []setting {
			return []setting{{file: "cpu.max", value: quota(milli) + " " + decimal(period)}}
		},
		v1: func(milli int64) []setting {
			return []setting{{file: "cpu.cfs_period_us", value: decimal(period)}, {file: "cpu.cfs_quota_us", value: quota(milli)}}
		},
	},
}

// grouped says whether a limit is set that takes a cgroup.
func (l Limits) grouped() bool {
	return slices.ContainsFunc(controllers, func(c controller) bool { return c.wanted(l) > 0 })
}

// quota returns the microseconds of each period for an amount of processors in thousandths.
func quota(milli int64) string { return decimal(max(milli*(period/1000), minQuota)) }

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// confine sets what cgroups limit. The leaf is that of the process in version 2, nil if it has none. Where version 2 does not have a
// controller, a group of version 1 with the given name is made: the process has to be forked within it, and it is to be removed after the
// process. Groups that were made are returned with an error too.
func confine(system cgroupfs.System, leaf *cgroup, name string, l Limits) (v1 []string, err error) {
	for _, c := range controllers {
		amount := c.wanted(l)
		if amount <= 0 {
			continue
		}
		refused := errors.New("the process has no cgroup of version 2")
		if leaf != nil {
			if refused = leaf.allow(c.name); refused == nil {
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

// allow sees to it that the group has a controller: the group above, which is that of the host, has to pass it on, and the one above that.
func (c cgroup) allow(controller string) error {
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
			return fmt.Errorf("the cgroup %s has processes in it, and so cannot pass on the controller %s: run the host in a group below "+
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

// within runs f on this thread while the thread is in groups of version 1, so that what f forks is in them from its beginning.
func within(groups []string, l Limits, f func() error) error {
	enter := func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0); err != nil {
			return fmt.Errorf("move a thread into the cgroup %s: %w", dir, err)
		}
		return nil
	}
	var err error
	for _, dir := range groups {
		err = errors.Join(err, enter(dir))
	}
	if err == nil {
		err = f()
	}
	for _, dir := range groups {
		err = errors.Join(err, enter(filepath.Dir(dir))) // the group of this process, in which dir was made
		if file := filepath.Join(dir, "pids.max"); l.Processes > 0 && unix.Access(file, unix.W_OK) == nil {
			err = errors.Join(err, os.WriteFile(file, []byte(strconv.Itoa(l.Processes)), 0))
		}
	}
	return err
}

// startBounded starts a program whose descriptors are bounded: as this program, which bounds itself and then executes the other. Only a
// process itself can do that before the first instruction of its program, and it needs no right for it.
func startBounded(spec *Spec, attr os.ProcAttr) (*os.Process, error) {
	refused, err := newPipe(0)
	if err != nil {
		return nil, err
	}
	defer refused.closeRead()
	args := []string{helperName + roleBounded, strconv.Itoa(spec.Limits.OpenFiles), strconv.Itoa(len(attr.Files)), spec.Path}
	attr.Env = slices.Concat([]string{helperEnv + "=" + roleBounded}, attr.Env)
	attr.Files = slices.Concat(attr.Files, []*os.File{refused.write})
	proc, err := os.StartProcess("/proc/self/exe", slices.Concat(args, spec.Args), &attr)
	refused.closeWrite()
	// gofail: var processLimit string
	// return proc, errors.New(processLimit)
	if err != nil {
		return nil, fmt.Errorf("execute this program again to limit the open files: %w", err)
	}
	// The pipe ends when the program is executed. Others of its user's processes can stop it before.
	const patience = 5 * time.Second
	_ = refused.read.SetReadDeadline(time.Now().Add(patience))
	why, err := io.ReadAll(refused.read)
	if err != nil {
		return proc, fmt.Errorf("wait for the program to be executed: %w", err)
	}
	if len(why) == 0 {
		return proc, nil
	}
	var what string
	var errno syscall.Errno
	if _, err := fmt.Sscan(string(why), &what, &errno); err != nil {
		return proc, fmt.Errorf("%.100q instead of an error of the program that limits itself", why)
	}
	if what == boundedLimit {
		return proc, fmt.Errorf("limit the open files to %d: %w", spec.Limits.OpenFiles, errno)
	}
	return proc, &os.PathError{Op: "fork/exec", Path: spec.Path, Err: errno}
}

// What a program that limits itself may fail in.
const boundedLimit, boundedExecute = "limit", "execute"

// runBounded becomes the program in args, which follows the bound and the descriptor to which what goes wrong is written.
func runBounded(args []string) {
	n, _ := strconv.ParseUint(args[0], 10, 64)
	refused, _ := strconv.Atoi(args[1])
	syscall.CloseOnExec(refused)
	what, err := boundedLimit, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
	if err == nil {
		_ = os.Unsetenv(helperEnv)
		what, err = boundedExecute, syscall.Exec(args[2], args[3:], os.Environ())
	}
	var errno syscall.Errno
	_ = errors.As(err, &errno)
	_, _ = syscall.Write(refused, fmt.Appendf(nil, "%s %d", what, errno))
}
