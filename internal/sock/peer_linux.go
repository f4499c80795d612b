package sock

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/plugin"
)

// PeerOf returns the process at the other end of conn as the kernel recorded it when the connection was made. It does not block.
func PeerOf(conn *net.UnixConn) (peer Credentials, err error) {
	err = Control(conn, func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return err
		}
		peer = Credentials{Peer: plugin.Peer{PID: int(cred.Pid), Boot: BootID()}, UID: cred.Uid, GID: cred.Gid}
		switch {
		case peer.PID <= 0:
		case !numbered():
			peer.Start = startTime(peer.PID)
		default:
			// The PID may have been reused.
			if pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
				peer.Start = startOf(pidfd)
				_ = unix.Close(pidfd)
			}
		}
		return nil
	})
	if err != nil {
		return Credentials{}, fmt.Errorf("ask the kernel for the peer of a Unix socket: %w", err)
	}
	return peer, nil
}

// UserOf returns the user of the process that [PeerOf] returns, with one system call.
func UserOf(conn *net.UnixConn) (uid uint32, err error) {
	err = Control(conn, func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			uid = cred.Uid
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask the kernel for the user of a Unix socket: %w", err)
	}
	return uid, nil
}

// ofPidfs marks a start that is a number of the kernel and not a time.
const ofPidfs = 1 << 63

// numbered reports whether the kernel gives each process of a boot a unique number: since Linux 6.9 that is the inode of a pidfd, on 64-bit
// systems.
var numbered = sync.OnceValue(func() bool {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(pidfd)
	var fs unix.Statfs_t
	return strconv.IntSize == 64 && unix.Fstatfs(pidfd, &fs) == nil && fs.Type == unix.PID_FS_MAGIC
})

// startOf returns the number of the process of a pidfd, or zero if it has ended.
func startOf(pidfd int) uint64 {
	var st unix.Stat_t
	if ready(pidfd, unix.POLLIN) || unix.Fstat(pidfd, &st) != nil {
		return 0
	}
	return st.Ino | ofPidfs
}

// Start returns [plugin.Peer].Start of the process with a PID, or zero if there is none. It is a unique number of the kernel or, before
// Linux 6.9, the start time, which is slower to find.
func Start(pid int) uint64 {
	if !numbered() {
		return startTime(pid)
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(pidfd)
	return startOf(pidfd)
}

// Is reports whether the process with this PID has this start.
func Is(pid int, start uint64) bool {
	if start&ofPidfs == 0 {
		return start != 0 && startTime(pid) == start
	}
	return numbered() && Start(pid) == start
}

// Renew converts a start that was recorded before Linux 6.9 to one that [PeerOf] returns now.
func Renew(pid int, start uint64) uint64 {
	if now := Start(pid); now != 0 && Is(pid, start) {
		return now
	}
	return start
}

// BootID identifies this boot of the system; empty if the system has no such ID.
func BootID() string { return bootID() }

var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// maxStat is more than the length of proc_pid_stat(5) up to the start time: 21 numbers and a command of 64 bytes.
const maxStat = 1 << 10

// startTime returns the start of a process in clock ticks after boot (field 22 of proc_pid_stat(5)), or zero if there is no such process.
func startTime(pid int) uint64 {
	// Each registration calls this, and an os.File would triple the cost, because it tries to add every file to the poller.
	fd, err := openFile("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var stat [maxStat]byte
	n, err := uninterrupted(func() (int, error) { return unix.Read(fd, stat[:]) }) // the kernel gives all of it at once
	if err != nil {
		return 0 // the process has ended
	}
	return parseStartTime(stat[:n])
}

// parseStartTime returns field 22 of a line of proc_pid_stat(5), or zero. The second field, the command in parentheses, may itself contain
// spaces and parentheses, so the count starts at the last closing one.
func parseStartTime(stat []byte) uint64 {
	const afterComm = 22 - 2 // fields after the command
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return 0
	}
	field, rest := []byte(nil), stat[i+1:]
	for range afterComm {
		field, rest, _ = bytes.Cut(bytes.TrimLeft(rest, " "), []byte(" "))
	}
	v, err := strconv.ParseUint(string(field), 10, 64)
	if err != nil {
		return 0
	}
	return v
}
