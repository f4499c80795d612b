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
)

// Dial connects to the stream socket at path. On Linux the path may be longer than a socket address. It ends when ctx is done, but in
// practice does not block: a connect to a Unix socket succeeds or fails immediately. Classify an error with [IsRefused], [IsGone] and
// [IsBusy].
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	if len(path) > MaxPath {
		return dialLong(ctx, path)
	}
	return dialAddr(ctx, path)
}

func dialAddr(ctx context.Context, name string) (*net.UnixConn, error) {
	var d net.Dialer
	return d.DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
}

// Conn is a connection together with the socket to which it was made, which may not be at its path any more.
type Conn struct {
	*net.UnixConn
	Socket Info
}

// Plain returns the connection in a [Conn]. gRPC saves a buffer of 32 KiB for an idle connection if its type is *net.UnixConn.
func Plain(conn net.Conn) net.Conn {
	if known, ok := conn.(Conn); ok {
		return known.UnixConn
	}
	return conn
}

// below returns path relative to root, or an error if it is not below root.
func below(root, path string) (string, error) {
	rel, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(rel) || rel == "." {
		return "", fmt.Errorf("connect %s: the path is not below %s: %w", path, root, syscall.EINVAL)
	}
	return rel, nil
}

// Probe checks that a process accepts on the socket at path: it connects and closes the connection. It returns the listening process, as
// [PeerOf] does. A full backlog is not an error, because a process listens, but then the peer is unknown (zero Credentials).
func Probe(ctx context.Context, path string) (Credentials, error) {
	conn, err := Dial(ctx, path)
	if err != nil {
		if IsBusy(err) {
			return Credentials{}, nil
		}
		return Credentials{}, err
	}
	peer, err := PeerOf(conn)
	return peer, errors.Join(err, conn.Close())
}

// ErrInUse is wrapped by the error of [Listen] if another process owns the socket.
var ErrInUse = errors.New("another process is listening")

// IsRefused reports whether err means that no process accepts at the path: its listener has exited, or does not listen yet, or (on Linux)
// the file is not a socket.
func IsRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// IsGone reports whether err means that there is no socket at the path.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENOTSOCK)
}

// IsBusy reports whether err means that the backlog of a listening process is full. The caller can retry soon.
func IsBusy(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// MadeFor returns the name of the socket for which [Make] has created file, both without the directory.
func MadeFor(file string) (name string, is bool) {
	hidden, made := strings.CutSuffix(file, ".made")
	name, is = strings.CutPrefix(hidden, ".")
	return name, is && made
}

// Control calls f with the descriptor of conn, which stays open during the call, and returns the error of f.
func Control(conn syscall.Conn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// TempDir returns the directory in which to create a temporary directory for sockets: [os.TempDir], or /tmp if the sockets' paths, which
// are longer than the directory's by room bytes, would be too long.
func TempDir(room int) string {
	const longest = 103 // that programs of all systems can connect to
	if dir := os.TempDir(); len(dir)+room <= longest {
		return dir
	}
	return "/tmp"
}
