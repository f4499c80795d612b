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
			// Not by its PID, which another process may have by now.
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

// ofPidfs marks a start that is the number which the kernel gave the process, and no time.
const ofPidfs = 1 << 63

// numbered reports whether the kernel numbers the processes of a boot: since Linux 6.9 that is the inode of a pidfd, where inodes have
// enough bits.
var numbered = sync.OnceValue(func() bool {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(pidfd)
	var fs unix.Statfs_t
	return strconv.IntSize == 64 && unix.Fstatfs(pidfd, &fs) == nil && fs.Type == unix.PID_FS_MAGIC
})

// startOf returns the start of the process of a pidfd where processes are numbered, or zero if it has ended.
func startOf(pidfd int) uint64 {
	var st unix.Stat_t
	if ready(pidfd, unix.POLLIN) || unix.Fstat(pidfd, &st) != nil {
		return 0
	}
	return st.Ino | ofPidfs
}

// Start says which process has a number, as [plugin.Peer].Start does, or returns zero if none has. That is the number which the kernel gave the
// process, or before Linux 6.9 its start time, which costs more to find out.
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

// Is reports whether a process is the one of a number and a start.
func Is(pid int, start uint64) bool {
	if start&ofPidfs == 0 {
		return start != 0 && startTime(pid) == start
	}
	return numbered() && Start(pid) == start
}

// Renew returns the start of a process as [PeerOf] returns it, of one that was noted when processes had start times only.
func Renew(pid int, start uint64) uint64 {
	if now := Start(pid); now != 0 && Is(pid, start) {
		return now
	}
	return start
}

// BootID names this boot of the system, or is empty where the system has no name for it.
func BootID() string { return bootID() }

var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// maxStat is more than the fields of a line of proc_pid_stat(5) up to the start time can take: 21 numbers and a command of 64 bytes.
const maxStat = 1 << 10

// startTime returns the start of a process in clock ticks after boot (field 22 of proc_pid_stat(5)), or zero if there is no such process.
func startTime(pid int) uint64 {
	// Each registration asks, and an os.File would triple the cost: it offers every file to the poller, which takes none of these.
	fd, err := openFile("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var stat [maxStat]byte
	n, err := uninterrupted(func() (int, error) { return unix.Read(fd, stat[:]) }) // the kernel gives all of it at once
	if err != nil {
		return 0 // it ended meanwhile
	}
	return parseStartTime(stat[:n])
}

// parseStartTime returns field 22 of a line of proc_pid_stat(5), or zero. The second field, the command in parentheses, may itself contain
// spaces and parentheses, so the count starts at the last closing one.
func parseStartTime(stat []byte) uint64 {
	const afterComm = 22 - 2 // how many fields after the command it is
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
