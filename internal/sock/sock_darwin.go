package sock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/plugin"
)

// MaxPath is the length in bytes of the longest path at which a socket can be bound and reached: sun_path without the terminating NUL.
const MaxPath = 103

func dialLong(_ context.Context, path string) (*net.UnixConn, error) {
	return nil, fmt.Errorf("connect %s: the path has %d bytes, the limit is %d; use a shorter one: %w",
		path, len(path), MaxPath, syscall.EINVAL)
}

// DialBelow is [Dial] for a socket below a directory in which other users may create files. It fails if there is a symbolic link below
// root, or the file at the path changes during the call. Root may be a symbolic link.
func DialBelow(ctx context.Context, root, path string) (*net.UnixConn, Info, error) {
	rel, err := below(root, path)
	if err != nil {
		return nil, Info{}, err
	}
	dir, names := root, strings.Split(rel, string(filepath.Separator))
	for _, name := range names[:len(names)-1] {
		dir = filepath.Join(dir, name)
		if info, err := Stat(dir); err != nil || !info.Mode.IsDir() {
			return nil, Info{}, errors.Join(err, &fs.PathError{Op: "connect", Path: path, Err: syscall.ENOTDIR})
		}
	}
	return dialStill(ctx, path)
}

// DialKnown is [Dial] that also returns the socket. It fails if path is a symbolic link, or the file at the path changes during the call.
func DialKnown(ctx context.Context, path string) (Conn, error) {
	conn, info, err := dialStill(ctx, path)
	return Conn{conn, info}, err
}

// Pinned is a socket at a path: this system cannot connect to a socket by other means.
type Pinned struct {
	path string
}

// Pin returns the socket at a path.
func Pin(path string) (*Pinned, error) {
	if _, err := Stat(path); err != nil {
		return nil, err
	}
	return &Pinned{path}, nil
}

// Dial connects to the socket at the path.
func (p *Pinned) Dial(ctx context.Context) (Conn, error) { return DialKnown(ctx, p.path) }

// Close does nothing.
func (*Pinned) Close() error { return nil }

func dialStill(ctx context.Context, path string) (*net.UnixConn, Info, error) {
	before, err := Stat(path)
	if err == nil && !before.IsSocket() {
		err = &fs.PathError{Op: "connect", Path: path, Err: syscall.ENOTSOCK}
	}
	if err != nil {
		return nil, Info{}, err
	}
	conn, err := Dial(ctx, path)
	if err != nil {
		return nil, Info{}, err
	}
	if after, err := Stat(path); err != nil || after.ID != before.ID {
		gone := &fs.PathError{Op: "connect", Path: path, Err: syscall.ENOENT}
		return nil, Info{}, errors.Join(gone, conn.Close())
	}
	return conn, before, nil
}

func bind(path string) (*net.UnixListener, error) {
	if len(path) > MaxPath {
		return nil, fmt.Errorf("the temporary path %s has %d bytes and a socket's path may have %d; choose a shorter directory",
			path, len(path), MaxPath)
	}
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// hasEnded reports false: whether the process that serves conn has ended is not known on this system.
func hasEnded(*net.UnixConn) bool { return false }

// Listens is not supported on this system: the error wraps [errors.ErrUnsupported].
func Listens(plugin.SocketID, int) (bool, error) {
	return false, fmt.Errorf("find out whether a process listens on a socket without a path: %w", errors.ErrUnsupported)
}

// isHeld reports false: whether a process has a socket is not known on this system.
func isHeld(plugin.SocketID) bool { return false }

// BootID returns an empty string: this system has no ID of a boot.
func BootID() string { return "" }

// Renew returns start.
func Renew(_ int, start uint64) uint64 { return start }

// Watcher is not supported on this system: every watch fails.
type Watcher struct{}

// NewWatcher returns a Watcher whose watches fail.
func NewWatcher() (*Watcher, error) { return &Watcher{}, nil }

// WatchProcess returns an error that wraps [ErrNotVisible] and [errors.ErrUnsupported].
func (w *Watcher) WatchProcess(*net.UnixConn, func()) (stop func(), err error) {
	return nil, fmt.Errorf("%w: %w", ErrNotVisible, errors.ErrUnsupported)
}

// WatchPID returns an error that wraps [ErrNotVisible] and [errors.ErrUnsupported].
func (w *Watcher) WatchPID(int, uint64, func()) (stop func(), err error) {
	return nil, fmt.Errorf("%w: %w", ErrNotVisible, errors.ErrUnsupported)
}

// WatchConn returns an error that wraps [errors.ErrUnsupported]. It does not close the connection.
func (w *Watcher) WatchConn(*net.UnixConn, func()) (stop func(), err error) {
	return nil, fmt.Errorf("watch a connection: %w", errors.ErrUnsupported)
}

// Run returns nil when ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// StatEntry is [Stat] with more results.
func StatEntry(path string, _ bool) (Entry, error) {
	info, err := Stat(path)
	if err != nil {
		return Entry{}, err
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return Entry{}, err
	}
	return Entry{Info: info, ModTime: fi.ModTime()}, nil
}

// PeerOf returns the process at the other end of conn. The start time is not known on this system.
func PeerOf(conn *net.UnixConn) (peer Credentials, err error) {
	err = Control(conn, func(fd int) error {
		cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		if err != nil {
			return err
		}
		peer.UID = cred.Uid
		if cred.Ngroups > 0 {
			peer.GID = cred.Groups[0]
		}
		peer.PID, err = unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID)
		return err
	})
	if err != nil {
		return Credentials{}, fmt.Errorf("ask the kernel for the peer of a Unix socket: %w", err)
	}
	return peer, nil
}

// Stat describes the file at path, which may be of any kind. It does not follow a symbolic link in the last element. An error is an
// [*fs.PathError].
func Stat(path string) (Info, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	info := Info{Mode: fi.Mode(), born: true}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		info.ID = plugin.SocketID{Device: uint64(st.Dev), Inode: st.Ino, Birth: st.Birthtimespec.Nano()}
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

// UserOf returns the user of the process that [PeerOf] returns.
func UserOf(conn *net.UnixConn) (uint32, error) {
	peer, err := PeerOf(conn)
	return peer.UID, err
}
