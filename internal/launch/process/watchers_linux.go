package process

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

// Watchers returns the IDs of the processes that have an inotify watch on a directory, sorted, except this one and processes that this user
// may not inspect; see proc_pid_fdinfo(5). It reads the descriptors of all processes, until ctx is done.
func Watchers(ctx context.Context, dir string) ([]int, error) {
	var st unix.Statx_t
	flags := unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC // a remote file system may not answer
	if err := unix.Statx(unix.AT_FDCWD, dir, flags, unix.STATX_INO, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", dir, err)
	}
	device := uint64(st.Dev_major)<<20 | uint64(st.Dev_minor) // the kernel's own dev_t
	watch := fmt.Sprintf(" ino:%x sdev:%x ", st.Ino, device)
	watchers := map[int]bool{}
	descriptors, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, fd := range descriptors {
		target, err := os.Readlink(fd)
		if err != nil || target != "anon_inode:inotify" || ctx.Err() != nil {
			continue
		}
		process := filepath.Dir(filepath.Dir(fd))
		watches, _ := os.ReadFile(filepath.Join(process, "fdinfo", filepath.Base(fd))) // the process may have exited
		pid, _ := strconv.Atoi(filepath.Base(process))
		if pid != os.Getpid() && strings.Contains(string(watches), watch) {
			watchers[pid] = true
		}
	}
	return slices.Sorted(maps.Keys(watchers)), nil
}
