package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
)

const (
	// Lower limits may not suffice for many plugins: each registered plugin and each connection needs a descriptor.
	fewOpenFiles = 4096
	fewWatches   = 8192
	fewInstances = 64
	// clockSlack is the tolerated difference between the clocks of a machine and of its file systems.
	clockSlack = time.Minute
)

// checkOpenFiles checks the hard limit of open files, to which the Go runtime raises the soft limit.
func checkOpenFiles(context.Context, Subject) []Finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return []Finding{warn(fmt.Sprintf("the limit of open files cannot be read: %v", err), "see ulimit -n")}
	}
	return []Finding{checkFileLimit(limit)}
}

func checkFileLimit(limit unix.Rlimit) Finding {
	if limit.Max < fewOpenFiles {
		return warn(fmt.Sprintf("at most %d files may be open, and every plugin takes one or two", limit.Max),
			"raise the hard limit: LimitNOFILE= in the unit, or ulimit -Hn")
	}
	return ok(fmt.Sprintf("up to %d files may be open", limit.Max))
}

// checkInotify checks the limits of inotify, and that a watch is available.
func checkInotify(context.Context, Subject) []Finding {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return []Finding{warn(fmt.Sprintf("no inotify instance is available: %v; plugin directories will be scanned instead", err),
			"raise fs.inotify.max_user_instances, or end programs that hold instances")}
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, "/", unix.IN_ATTRIB); err != nil {
		return []Finding{warn(fmt.Sprintf("no inotify watch is available: %v; plugin directories will be scanned instead", err),
			"raise fs.inotify.max_user_watches")}
	}
	for _, limit := range []struct {
		name string
		few  int
	}{{"max_user_watches", fewWatches}, {"max_user_instances", fewInstances}} {
		value, err := readNumber("/proc/sys/fs/inotify/" + limit.name)
		if err == nil && value < limit.few {
			return []Finding{warn(fmt.Sprintf("fs.inotify.%s is %d: directories that exceed it are scanned", limit.name, value),
				fmt.Sprintf("sysctl -w fs.inotify.%s=%d", limit.name, limit.few))}
		}
	}
	return []Finding{ok("inotify works, and its limits are high enough")}
}

func readNumber(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// The oldest supported kernel is the first one with cgroup.kill. Earlier versions introduced pidfd with poll and waitid, clone3 into a
// cgroup, close_range, openat2 and birth times in statx.
const needMajor, needMinor = 5, 14

// features are kernel features that can be missing on any kernel, because of a sandbox or a file system, with the consequence.
var features = []struct {
	name, loss string
	probe      func() error
}{
	{"pidfd", "the death of a plugin is found by probes within 5 s, and no plugin can be launched", func() error {
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}},
	{"openat2", "no launched plugin is registered, and none of a user other than root and the daemon's", func() error {
		fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}},
	{"close_range", "no plugin can be launched", func() error {
		return unix.CloseRange(math.MaxInt32, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) // there is no such descriptor
	}},
	{"birth times of files (statx)", "a socket that is created again within a clock tick may be mistaken for the old one", func() error {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, "/", 0, unix.STATX_BTIME, &st); err != nil {
			return err
		}
		if st.Mask&unix.STATX_BTIME == 0 {
			return errors.ErrUnsupported
		}
		return nil
	}},
	{"sealed memory files", "a program could be changed between the check of its digest and its start", func() error {
		const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
		fd, err := unix.MemfdCreate("doctor", flags|unix.MFD_EXEC) // the sysctl vm.memfd_noexec may forbid it
		if errors.Is(err, unix.EINVAL) {                           // before Linux 6.3, where every memory file is executable
			fd, err = unix.MemfdCreate("doctor", flags)
		}
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}},
}

// checkKernel checks the version of the kernel and tries the features that Patchbay uses.
func checkKernel(context.Context, Subject) []Finding {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return []Finding{warn(fmt.Sprintf("the kernel version is not known: %v", err), "see uname -r")}
	}
	version := checkRelease(unix.ByteSliceToString(name.Release[:]))
	if version.Status == Fail {
		return []Finding{version}
	}
	var findings []Finding
	for _, f := range features {
		if err := f.probe(); err != nil {
			findings = append(findings, warn(fmt.Sprintf("a sandbox or file system does not offer %s (%v): %s", f.name, err, f.loss),
				"allow it in the sandbox (seccomp), or use another file system"))
		}
	}
	if len(findings) == 0 {
		findings = []Finding{version}
	}
	return findings
}

// checkRelease checks the release of a kernel, such as 5.14.0-362.el9.x86_64.
func checkRelease(release string) Finding {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return warn(fmt.Sprintf("the version of the kernel is not known: its release is %q", release), "check that it is Linux 5.14 or newer")
	}
	if major < needMajor || major == needMajor && minor < needMinor {
		return fail(fmt.Sprintf("Linux %s is too old: no plugin can be launched, because features are missing "+
			"(cgroup.kill, close_range)", release), fmt.Sprintf("run Linux %d.%d or newer", needMajor, needMinor))
	}
	return ok("Linux " + release + " has all required features: pidfd, statx, memfd")
}

// checkCgroup checks that control groups of version 2 can be created, and which resources can be limited.
func checkCgroup(context.Context, Subject) []Finding {
	system, err := cgroupfs.Self()
	if err != nil {
		return []Finding{warn(fmt.Sprintf("the control groups of this process are not known: %v", err), "mount /proc")}
	}
	writable := func(dir string) error { return unix.Access(dir, unix.W_OK) }
	return []Finding{checkCreateGroups(system, writable), checkLimits(system, cgroupfs.Controllers, writable)}
}

const delegate = "run the daemon under systemd with Delegate=yes and DelegateSubgroup=, or as root with the hierarchy mounted writable"

// checkCreateGroups checks that control groups of version 2 can be created.
func checkCreateGroups(system cgroupfs.System, writable func(dir string) error) Finding {
	const loss = "descendants of a plugin that leave its process group may outlive a host that is killed"
	if system.Unified == nil {
		return warn(fmt.Sprintf("no control groups of version 2 are mounted (mounted: %s): %s", system.Kind(), loss),
			"mount the version 2 hierarchy: mount -t cgroup2 none /sys/fs/cgroup")
	}
	dir, err := system.Unified.Dir()
	if err == nil {
		err = writable(dir)
	}
	if err != nil {
		return warn(fmt.Sprintf("control groups cannot be created in %s: %v; %s", cmp.Or(dir, system.Unified.Mount), err, loss), delegate)
	}
	return ok(fmt.Sprintf("control groups can be created in %s; this system is %s", dir, system.Kind()))
}

// checkLimits checks that control groups of either version can limit the memory and processor time of plugins.
func checkLimits(system cgroupfs.System, controllers func(dir string) []string, writable func(dir string) error) Finding {
	var can, cannot []string
	for _, name := range []string{"memory", "cpu"} {
		if system.Unified != nil {
			if dir, err := system.Unified.Dir(); err == nil && slices.Contains(controllers(dir), name) && writable(dir) == nil {
				can = append(can, name+" by version 2")
				continue
			}
		}
		place, has := system.V1[name]
		dir, err := place.Dir()
		if has && err == nil && writable(dir) == nil {
			can = append(can, name+" by version 1")
			continue
		}
		cannot = append(cannot, name)
	}
	if len(cannot) > 0 {
		return warn("control groups cannot limit "+strings.Join(cannot, " and ")+" here: a plugin with such a limit is not started", delegate)
	}
	return ok("control groups can limit " + strings.Join(can, " and "))
}

// checkClock checks that the clock is synchronized and is not behind the last write of the state file.
func checkClock(_ context.Context, s Subject) []Finding {
	var timex unix.Timex
	_, err := unix.Adjtimex(&timex)
	var written time.Time
	if info, err := os.Stat(s.StatePath); err == nil {
		written = info.ModTime()
	}
	return []Finding{compareClock(time.Now(), written, err == nil && timex.Status&unix.STA_UNSYNC == 0)}
}

// compareClock compares now with the time of the last write of the state file, zero if there is none.
func compareClock(now, written time.Time, synchronised bool) Finding {
	const setIt = "set the clock, for example with timedatectl set-ntp true"
	shown := now.UTC().Format(time.RFC3339)
	switch {
	case written.Sub(now) > clockSlack:
		return warn(fmt.Sprintf("it is %s, and the state file was written at %s: the clock was set back, or is wrong",
			shown, written.UTC().Format(time.RFC3339)), setIt)
	case !synchronised:
		return warn("the clock is not synchronised ("+shown+"): times in events and states may be wrong, and valid certificates may be refused",
			setIt)
	}
	return ok("the clock is synchronised")
}
