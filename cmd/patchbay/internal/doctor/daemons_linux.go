package doctor

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/process"
)

// checkOtherDaemons looks for processes other than the daemon that lock the state file or watch a plugin directory.
func checkOtherDaemons(ctx context.Context, s Subject) []Finding {
	daemon, _ := daemonOf(ctx, s) // checkControlSocket reports the error
	var findings []Finding
	if pid, locked := lockedBy(s.StatePath); locked && (pid != daemon || daemon == 0) {
		findings = append(findings, fail(
			fmt.Sprintf("state file %s is in use by %s, which does not serve control socket %s: no daemon can be started with it",
				s.StatePath, processName(pid), s.ControlSocket),
			"end that daemon, or give each daemon its own --state and --control-socket"))
	}
	for _, dir := range s.PluginDirs {
		watchers, _ := process.Watchers(ctx, dir) // checkPluginDirs reports the error
		for _, pid := range watchers {
			if pid != daemon {
				findings = append(findings, warn(
					fmt.Sprintf("plugin directory %s is watched by %s too: if that is a daemon or a kubelet, both register what is there",
						dir, processName(pid)),
					"give each its own --plugin-dir, or end one of them"))
			}
		}
	}
	return orOK(findings, "no other process uses the state file or watches the plugin directories")
}

// lockedBy reports whether the file at path is locked, and by which process; zero if the process is not visible from this PID namespace. It
// does not try to take the lock, because a daemon that starts at the same time would fail.
func lockedBy(path string) (pid int, locked bool) {
	var st unix.Statx_t
	flags := unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC // a remote file system may not answer
	if unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_INO, &st) != nil {
		return 0, false
	}
	inode := fmt.Sprintf("%02x:%02x:%d", st.Dev_major, st.Dev_minor, st.Ino)
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF; "->" before the kind marks a waiting process.
		fields := strings.Fields(line)
		if len(fields) >= 6 && fields[1] != "->" && fields[5] == inode {
			pid, _ = strconv.Atoi(fields[4])
			return max(pid, 0), true
		}
	}
	return 0, false
}
