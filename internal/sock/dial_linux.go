package sock

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// MaxPath is the length in bytes of the longest path at which a socket can be bound, and reached by programs that connect by path:
// sun_path of unix(7) without the terminating NUL.
const MaxPath = 107

// dialLong connects to a path that does not fit into a socket address, through the kernel's name for a descriptor of the socket's inode.
func dialLong(ctx context.Context, path string) (*net.UnixConn, error) {
	fd, err := openPath(path, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return dialAddr(ctx, procPath(fd))
}

// DialBelow is [Dial] for a socket below a directory in which other users may create files. It does not follow symbolic links below root.
// The Info is that of the socket to which it connected, even if that is not at the path any more. Root may be a symbolic link.
func DialBelow(ctx context.Context, root, path string) (*net.UnixConn, Info, error) {
	rel, err := below(root, path)
	if err != nil {
		return nil, Info{}, err
	}
	dir, err := openPath(root, unix.O_DIRECTORY)
	if err != nil {
		return nil, Info{}, err
	}
	defer unix.Close(dir)
	how := unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := uninterrupted(func() (int, error) { return unix.Openat2(dir, rel, &how) })
	if errors.Is(err, unix.ELOOP) {
		err = unix.ENOTDIR // a symbolic link instead of a directory
	}
	if err != nil {
		return nil, Info{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return dialFD(ctx, fd, path)
}

// DialKnown is [Dial] that also returns the socket. It follows symbolic links.
func DialKnown(ctx context.Context, path string) (Conn, error) {
	fd, err := openPath(path, 0)
	if err != nil {
		return Conn{}, err
	}
	defer unix.Close(fd)
	conn, info, err := dialFD(ctx, fd, path)
	return Conn{conn, info}, err
}

func dialFD(ctx context.Context, fd int, path string) (*net.UnixConn, Info, error) {
	e, err := entryAt(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && !e.IsSocket() {
		err = unix.ENOTSOCK
	}
	if err != nil {
		return nil, Info{}, &fs.PathError{Op: "connect", Path: path, Err: err}
	}
	conn, err := dialAddr(ctx, procPath(fd))
	// Replace the address in the error, which is a path in /proc.
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = &fs.PathError{Op: "connect", Path: path, Err: op.Err}
	}
	if err != nil {
		return nil, Info{}, err
	}
	return conn, e.Info, nil
}

// bind listens on path, which may be longer than a socket address can hold.
func bind(path string) (*net.UnixListener, error) {
	// gofail: var sockBind int
	// return nil, unix.Errno(sockBind)
	dir, err := openPath(filepath.Dir(path), unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return net.ListenUnix("unix", &net.UnixAddr{Name: procPath(dir) + "/" + filepath.Base(path), Net: "unix"})
}

func socket() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }

// bindTo binds a socket to path, which may be longer than a socket address can hold.
func bindTo(fd int, path string) error {
	if len(path) <= MaxPath {
		return unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	dir, err := openPath(filepath.Dir(path), unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: procPath(dir) + "/" + filepath.Base(path)})
}

// openPath opens path for naming only (O_PATH), which needs no permission on the file itself.
func openPath(path string, flags int) (int, error) { return openFile(path, unix.O_PATH|flags) }

func openFile(path string, flags int) (int, error) {
	fd, err := uninterrupted(func() (int, error) { return unix.Open(path, unix.O_CLOEXEC|flags, 0) })
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
