package sock

import (
	"fmt"
	"net"
	"os"
	"syscall"

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

// Stat describes what is at path without following a symbolic link in its last element. It works for every kind of file; ask
// [Info.IsSocket]. An error is an [*fs.PathError].
func Stat(path string) (Info, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	info := Info{Mode: fi.Mode(), born: true}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		info.ID = ID{Device: uint64(st.Dev), Inode: st.Ino, Birth: st.Birthtimespec.Nano()}
		info.UID, info.GID = st.Uid, st.Gid
	}
	return info, nil
}

func socket() (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	return fd, err
}

func bindTo(fd int, path string) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: path}) }
