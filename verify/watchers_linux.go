package verify

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/process"
)

// watchersOf returns the processes that have an inotify watch on a directory, but for this one, the plugin's and what that has started, as
// far as they can be seen from here. Their watches stand in /proc/PID/fdinfo (proc_pid_fdinfo(5)). A plugin that is zero is not known.
func watchersOf(dir string, plugin int) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", dir, err)
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	want := fmt.Sprintf(" ino:%x sdev:%x ", st.Ino, kernelDevice(uint64(st.Dev))) //nolint:unconvert // its type differs among processors
	var found []string
	for _, entry := range processes {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if watches(filepath.Join("/proc", entry.Name()), want) && !isOf(plugin, pid) {
			name, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "comm")) // it may have ended
			found = append(found, fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(name)), pid))
		}
	}
	return found, nil
}

// isOf says whether a process is the plugin's, or one that this started. What this process has started is not a plugin's, although it may
// be this process that serves.
func isOf(plugin, pid int) bool {
	return plugin != 0 && plugin != os.Getpid() && (pid == plugin || process.Descends(pid, plugin))
}

// kernelDevice is how the kernel itself writes a device number: minor in the lower 20 bits.
func kernelDevice(device uint64) uint64 {
	return uint64(unix.Major(device))<<20 | uint64(unix.Minor(device))
}

// watches reports whether a process has the watch. One that cannot be looked into has none.
func watches(proc, want string) bool {
	descriptors, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return false
	}
	for _, fd := range descriptors {
		if target, err := os.Readlink(filepath.Join(proc, "fd", fd.Name())); err != nil || target != "anon_inode:inotify" {
			continue
		}
		info, err := os.ReadFile(filepath.Join(proc, "fdinfo", fd.Name()))
		if err == nil && strings.Contains(string(info), want) {
			return true
		}
	}
	return false
}
