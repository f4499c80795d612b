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
)

// PeerOf returns the process at the other end of conn as the kernel recorded it when the connection was made. It does not block.
func PeerOf(conn *net.UnixConn) (Peer, error) {
	var cred *unix.Ucred
	err := Control(conn, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return Peer{}, fmt.Errorf("ask the kernel for the peer of a Unix socket: %w", err)
	}
	peer := Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}
	if peer.PID > 0 {
		peer.StartTime = StartTime(peer.PID)
	}
	return peer, nil
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

// StartTime returns the start of a process in clock ticks after boot, as [Peer] has it, or zero if there is no such process.
func StartTime(pid int) uint64 {
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
