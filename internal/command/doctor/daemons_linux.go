package doctor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// inodeAt returns what /proc writes for the inode at a path, in the list of locks and in that of inotify watches.
func inodeAt(path string) (inLocks, inWatches string, err error) {
	var st unix.Statx_t
	flags := unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC // what is mounted there may not answer
	if err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_INO, &st); err != nil {
		return "", "", err
	}
	major, minor := st.Dev_major, st.Dev_minor
	device := uint64(major)<<20 | uint64(minor) // the kernel's own dev_t
	return fmt.Sprintf("%02x:%02x:%d", major, minor, st.Ino), fmt.Sprintf(" ino:%x sdev:%x ", st.Ino, device), nil
}

// checkOtherDaemons looks for processes that have the state file or watch a plugin directory and are not the daemon of the control socket.
func checkOtherDaemons(ctx context.Context, s Subject) []Finding {
	daemon, _ := daemonOf(ctx, s) // what is wrong is said by the check of the control socket
	var findings []Finding
	if state, _, err := inodeAt(s.StatePath); err == nil {
		if pid, locked := lockedBy(state); locked && (pid != daemon || daemon == 0) {
			findings = append(findings, fail(
				fmt.Sprintf("state file %s is in use by %s, which does not serve control socket %s: no daemon can be started with it",
					s.StatePath, processName(pid), s.ControlSocket),
				"end that daemon, or give each daemon its own --state and --control-socket"))
		}
	}
	watches := inotifyWatches(ctx)
	for _, dir := range s.PluginDirs {
		_, watched, err := inodeAt(dir)
		if err != nil {
			continue // said by the check of the directories
		}
		for _, pid := range slices.Sorted(maps.Keys(watches)) {
			if strings.Contains(watches[pid], watched) && pid != daemon && pid != os.Getpid() {
				findings = append(findings, warn(
					fmt.Sprintf("plugin directory %s is watched by %s too: if that is a daemon or a kubelet, both register what is there",
						dir, processName(pid)),
					"give each its own --plugin-dir, or end one of them"))
			}
		}
	}
	if len(findings) == 0 {
		return []Finding{ok("no other process uses the state file or watches the plugin directories")}
	}
	return findings
}

// Watchers returns the processes other than this one that watch a directory, as far as they can be seen from here; none if it is not there.
// It reads what all processes watch.
func Watchers(ctx context.Context, dir string) []string {
	_, watched, err := inodeAt(dir)
	if err != nil {
		return nil
	}
	var names []string
	watches := inotifyWatches(ctx)
	for _, pid := range slices.Sorted(maps.Keys(watches)) {
		if strings.Contains(watches[pid], watched) && pid != os.Getpid() {
			names = append(names, processName(pid))
		}
	}
	return names
}

// lockedBy says whether a file is locked, and by which process: zero for one that cannot be seen from here. It does not try the lock, which
// would be in the way of a daemon that starts.
func lockedBy(inode string) (pid int, locked bool) {
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF; "->" before the kind marks one that waits.
		fields := strings.Fields(line)
		if len(fields) >= 6 && fields[1] != "->" && fields[5] == inode {
			pid, _ = strconv.Atoi(fields[4])
			return max(pid, 0), true
		}
	}
	return 0, false
}

// inotifyWatches returns the lists of inotify watches by process, as far as this user may see them; see proc_pid_fdinfo(5).
func inotifyWatches(ctx context.Context) map[int]string {
	watches := map[int]string{}
	descriptors, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, fd := range descriptors {
		target, err := os.Readlink(fd)
		if err != nil || target != "anon_inode:inotify" || ctx.Err() != nil {
			continue
		}
		process := filepath.Dir(filepath.Dir(fd))
		list, err := os.ReadFile(filepath.Join(process, "fdinfo", filepath.Base(fd)))
		if pid, wrong := strconv.Atoi(filepath.Base(process)); err == nil && wrong == nil {
			watches[pid] += string(list)
		}
	}
	return watches
}

func processName(pid int) string {
	if pid == 0 {
		return "a process that cannot be seen from here"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name)))
}
