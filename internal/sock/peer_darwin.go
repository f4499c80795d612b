package sock

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// PeerOf returns the process at the other end of conn. The start time is not known on this system.
func PeerOf(conn *net.UnixConn) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var peer Peer
	var cerr error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Xucred
		if cred, cerr = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED); cerr != nil {
			return
		}
		peer.UID = cred.Uid
		if cred.Ngroups > 0 {
			peer.GID = cred.Groups[0]
		}
		peer.PID, cerr = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	})
	if err == nil {
		err = cerr
	}
	if err != nil {
		return Peer{}, fmt.Errorf("ask the kernel for the peer of a Unix socket: %w", err)
	}
	return peer, nil
}

// BootID names this boot of the system, or is empty where the system has no name for it.
func BootID() string { return "" }
