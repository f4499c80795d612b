package sock

import (
	"context"
	"errors"
	"io/fs"
	"net"

	"golang.org/x/sys/unix"
)

// DialBelow is [Dial] for a socket below a directory in which others may make files: no symbolic link between root and the socket is
// followed, and the Info is that of the socket to which it connected, whatever is at the path by now. Root itself may be a link.
func DialBelow(ctx context.Context, root, path string) (*net.UnixConn, Info, error) {
	names, ok := below(root, path)
	if !ok {
		return nil, Info{}, errNotBelow(root, path)
	}
	fd, err := openPath(root, unix.O_DIRECTORY)
	if err != nil {
		return nil, Info{}, err
	}
	defer func() { unix.Close(fd) }()
	for i, name := range names {
		flags := unix.O_NOFOLLOW
		if i < len(names)-1 {
			flags |= unix.O_DIRECTORY
		}
		next, err := openAt(fd, name, flags)
		if err != nil {
			return nil, Info{}, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		_ = unix.Close(fd)
		fd = next
	}
	return dialFD(ctx, fd, path)
}

// DialKnown is [Dial] with a connection that knows its socket. It follows symbolic links.
func DialKnown(ctx context.Context, path string) (Conn, error) {
	fd, err := openPath(path, 0)
	if err != nil {
		return Conn{}, err
	}
	defer unix.Close(fd)
	conn, info, err := dialFD(ctx, fd, path)
	return Conn{conn, info}, err
}

// dialFD connects to the socket that is open for naming only.
func dialFD(ctx context.Context, fd int, path string) (*net.UnixConn, Info, error) {
	info, err := statAt(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && !info.IsSocket() {
		err = unix.ENOTSOCK
	}
	if err != nil {
		return nil, Info{}, &fs.PathError{Op: "connect", Path: path, Err: err}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", procPath(fd))
	if err != nil {
		// What the error calls the socket says nothing to anybody.
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = &fs.PathError{Op: "connect", Path: path, Err: op.Err}
		}
		return nil, Info{}, err
	}
	uc, err := unixConn(conn, path)
	return uc, info, err
}

// openAt opens a name in a directory for naming only.
func openAt(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
