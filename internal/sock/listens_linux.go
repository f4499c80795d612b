package sock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Listens reports whether the process pid still listens on a socket that has no path any more. It asks the kernel, which lists the sockets
// of one network namespace. If the socket is not in the list, it returns an error if the process is in another namespace or not visible. If
// the descriptors of the process cannot be read, any socket with the inode number counts. It needs one system call for a few hundred
// listening sockets.
func Listens(id plugin.SocketID, pid int) (bool, error) {
	for range 2 { // the list may omit a socket while others are created and closed
		listens, err := hasSocket(id, pid, diagListens)
		if listens || err != nil {
			return listens, err
		}
	}
	own, err := os.Readlink("/proc/self/ns/net")
	theirs, theirErr := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	if err := errors.Join(err, theirErr); err != nil {
		return false, fmt.Errorf("find the network namespace of process %d: %w", pid, err)
	}
	if own != theirs {
		return false, fmt.Errorf("process %d has its sockets in another network namespace, %s: %w", pid, theirs, errors.ErrUnsupported)
	}
	return false, nil
}

// The request and its constants are those of linux/unix_diag.h.
type (
	diagRequest struct {
		Header           unix.NlMsghdr
		Family, Protocol uint8
		_                uint16
		States           uint32 // a bit for each
		Inode            uint32 // of the socket itself
		Show             uint32
		Cookie           [2]uint32
	}
)

const (
	diagListens  = 1 << 10 // TCP_LISTEN, of Unix sockets too
	diagBound    = 1 << 7  // TCP_CLOSE: not listening yet, nor connected
	diagShowName = 1 << 0
	diagShowFile = 1 << 1
	diagName     = 0 // attributes
	diagFile     = 1
	diagNumber   = 4  // where the number of the socket itself, not of its file, is in an answer
	diagFixed    = 16 // bytes of an answer before its attributes
)

// isHeld reports whether a process of this network namespace listens on a socket or has bound it. It returns false if the kernel does not
// answer.
func isHeld(id plugin.SocketID) bool {
	const anyProcess = 0
	held, err := hasSocket(id, anyProcess, diagListens|diagBound)
	return held && err == nil
}

// hasSocket reports whether id is among the sockets of pid in these states.
func hasSocket(id plugin.SocketID, pid int, states uint32) (found bool, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return false, fmt.Errorf("ask the kernel for sockets: %w", err)
	}
	defer unix.Close(fd)
	request := diagRequest{Family: unix.AF_UNIX, States: states, Show: diagShowName | diagShowFile}
	request.Header = unix.NlMsghdr{
		Len: uint32(binary.Size(request)), Type: unix.SOCK_DIAG_BY_FAMILY, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP,
	}
	text, err := binary.Append(nil, binary.NativeEndian, request)
	if err == nil {
		err = unix.Sendto(fd, text, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	for part := make([]byte, 1<<15); err == nil && !found; {
		var n int
		n, err = uninterrupted(func() (int, error) { return unix.Read(fd, part) })
		if err != nil {
			break
		}
		var done bool
		if found, done, err = hasListener(part[:n], id, pid); done {
			return found, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("ask the kernel for sockets: %w", err)
	}
	return found, nil
}

// hasListener reports whether id is in a part of the kernel's answer, and whether that is the last part.
func hasListener(part []byte, id plugin.SocketID, pid int) (found, done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(part)
	if err != nil {
		return false, false, err
	}
	for _, m := range messages {
		switch {
		case m.Header.Type == unix.NLMSG_DONE:
			return false, true, nil
		case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
			return false, false, unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
		case m.Header.Type == unix.SOCK_DIAG_BY_FAMILY && len(m.Data) >= diagFixed && isSocket(m.Data[diagFixed:], id) &&
			holds(pid, binary.NativeEndian.Uint32(m.Data[diagNumber:])):
			return true, false, nil
		}
	}
	return false, false, nil
}

// holds reports whether a socket is among the descriptors of a process, or these are not visible. The inode number alone does not suffice,
// because it may have been reused for a socket of another process.
func holds(pid int, socket uint32) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return true
	}
	link := fmt.Sprintf("socket:[%d]", socket)
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && to == link
	})
}

// isSocket reports whether the attributes are those of the socket id. It does not compare the device, because for file systems with several
// volumes the kernel's differs from stat's. The kernel does not return the birth time, and inode numbers are reused. So if another file
// with the same number is at the path in the attributes, the socket is that file and not id.
func isSocket(attrs []byte, id plugin.SocketID) bool {
	var name string
	var inode uint64
	want := id.Inode & (1<<32 - 1) // the kernel returns only 32 bits
	for len(attrs) >= 4 {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < 4 || size > len(attrs) {
			return false
		}
		value := attrs[4:size]
		switch binary.NativeEndian.Uint16(attrs[2:]) {
		case diagName:
			name = string(bytes.TrimRight(value, "\x00"))
		case diagFile:
			if len(value) < 4 {
				return false
			}
			inode = uint64(binary.NativeEndian.Uint32(value))
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
	}
	if inode == 0 || inode != want {
		return false
	}
	at, err := Stat(name)
	return err != nil || !filepath.IsAbs(name) || at.ID.Inode&(1<<32-1) != inode || at.ID == id
}
