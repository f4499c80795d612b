package doctor

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// file is an inode as /proc names it: the device as the kernel counts it, and the number.
type file struct {
	major, minor uint32
	inode        uint64
}

func fileAt(path string) (file, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return file{}, err
	}
	return file{unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino}, nil
}

// checkOtherDaemons looks for processes that have the state file or watch a plugin directory and are not the daemon of the control socket.
func checkOtherDaemons(ctx context.Context, s Subject) []Finding {
	daemon, _ := daemonOf(ctx, s) // what is wrong is said by the check of the control socket
	var findings []Finding
	if state, err := fileAt(s.StatePath); err == nil {
		if pid, locked := lockedBy(state); locked && (pid != daemon || daemon == 0) {
			findings = append(findings, fail(
				fmt.Sprintf("state file %s is in use by %s, which does not serve control socket %s: no daemon can be started with it",
					s.StatePath, processName(pid), s.ControlSocket),
				"end that daemon, or give each daemon its own --state and --control-socket"))
		}
	}
	watchers := watchersOf(ctx)
	for _, dir := range s.PluginDirs {
		watched, err := fileAt(dir)
		if err != nil {
			continue // said by the check of the directories
		}
		for _, pid := range watchers[watched] {
			if pid != daemon && pid != os.Getpid() {
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

// lockedBy says whether a file is locked, and by which process: zero for one that cannot be seen from here. It does not try the lock, which
// would be in the way of a daemon that starts.
func lockedBy(f file) (pid int, locked bool) {
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false
	}
	want := fmt.Sprintf("%02x:%02x:%d", f.major, f.minor, f.inode)
	for line := range strings.Lines(string(text)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF; "->" before the kind marks one that waits.
		fields := strings.Fields(line)
		if len(fields) >= 6 && fields[1] != "->" && fields[5] == want {
			pid, _ = strconv.Atoi(fields[4])
			return max(pid, 0), true
		}
	}
	return 0, false
}

// watchersOf returns the processes that have inotify watches, by what they watch, as far as this user may see that.
func watchersOf(ctx context.Context) map[file][]int {
	watchers := map[file][]int{}
	processes, err := filepath.Glob("/proc/[0-9]*/fd")
	if err != nil {
		return nil
	}
	for _, fds := range processes {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(fds)))
		entries, readErr := os.ReadDir(fds)
		if err != nil || readErr != nil || ctx.Err() != nil {
			continue
		}
		for _, entry := range entries {
			for f := range inotifyWatches(filepath.Dir(fds), entry) {
				if !slices.Contains(watchers[f], pid) {
					watchers[f] = append(watchers[f], pid)
				}
			}
		}
	}
	return watchers
}

// inotifyWatches returns what is watched through one descriptor, see proc_pid_fdinfo(5).
func inotifyWatches(process string, fd fs.DirEntry) map[file]bool {
	target, err := os.Readlink(filepath.Join(process, "fd", fd.Name()))
	if err != nil || target != "anon_inode:inotify" {
		return nil
	}
	info, err := os.Open(filepath.Join(process, "fdinfo", fd.Name()))
	if err != nil {
		return nil
	}
	defer info.Close()
	watched := map[file]bool{}
	for lines := bufio.NewScanner(info); lines.Scan(); {
		var wd int
		var inode, device uint64
		if n, _ := fmt.Sscanf(lines.Text(), "inotify wd:%x ino:%x sdev:%x", &wd, &inode, &device); n == 3 {
			const minorBits = 20 // of the kernel's own dev_t
			watched[file{uint32(device >> minorBits), uint32(device & (1<<minorBits - 1)), inode}] = true
		}
	}
	return watched
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
