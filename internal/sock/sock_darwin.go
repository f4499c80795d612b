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
	return nil, fmt.Errorf("connect %s: the path has %d bytes, the limit is %d; use a shorter one: %w", path, len(path), MaxPath, syscall.EINVAL)
}

// DialBelow is [Dial] for a socket below a directory in which others may make files: it fails if there is a symbolic link between root and
// the socket, and if what is at the path changes meanwhile. Root itself may be a link.
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

// DialKnown is [Dial] with a connection that knows its socket. It refuses a symbolic link at the end of the path, and fails if what is at
// the path changes meanwhile.
func DialKnown(ctx context.Context, path string) (Conn, error) {
	conn, info, err := dialStill(ctx, path)
	return Conn{conn, info}, err
}

// Pinned is a socket that is reached by its path: the system has no other name for it.
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
	return false, fmt.Errorf("find out whether anybody listens on a socket at no path: %w", errors.ErrUnsupported)
}

// isHeld reports false: whether a process has a socket is not known on this system.
func isHeld(plugin.SocketID) bool { return false }

// BootID names this boot of the system, or is empty where the system has no name for it.
func BootID() string { return "" }

// Renew returns start: a process has no other one here.
func Renew(_ int, start uint64) uint64 { return start }

// Watcher tells when the peers of connections go. This system has no way to do that: every watch fails.
type Watcher struct{}

// NewWatcher returns a Watcher that can watch nothing.
func NewWatcher() (*Watcher, error) { return &Watcher{}, nil }

// WatchProcess returns an error that wraps [ErrNotVisible] and [errors.ErrUnsupported].
func (w *Watcher) WatchProcess(*net.UnixConn, func()) (stop func(), err error) {
	return nil, fmt.Errorf("%w: %w", ErrNotVisible, errors.ErrUnsupported)
}

// WatchPID returns an error that wraps [ErrNotVisible] and [errors.ErrUnsupported].
func (w *Watcher) WatchPID(int, uint64, func()) (stop func(), err error) {
	return nil, fmt.Errorf("%w: %w", ErrNotVisible, errors.ErrUnsupported)
}

// WatchConn returns an error that wraps [errors.ErrUnsupported], and leaves the connection as it is.
func (w *Watcher) WatchConn(*net.UnixConn, func()) (stop func(), err error) {
	return nil, fmt.Errorf("watch a connection: %w", errors.ErrUnsupported)
}

// Run returns nil when ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// StatEntry is Stat that returns more.
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
func PeerOf(conn *net.UnixConn) (Credentials, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Credentials{}, err
	}
	var peer Credentials
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
		return Credentials{}, fmt.Errorf("ask the kernel for the peer of a Unix socket: %w", err)
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
