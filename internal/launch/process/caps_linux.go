package process

import (
	"os"

	"golang.org/x/sys/unix"
)

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
