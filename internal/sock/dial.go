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

// Dial connects to the stream socket at path. On Linux the path may be longer than a socket address can hold. It blocks no longer than
// ctx allows, and in practice not at all: a connect to a Unix socket succeeds or fails at once. Classify an error with [IsRefused],
// [IsGone] and [IsBusy].
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

// Conn is a connection that knows the socket to which it was made, whatever is at the path by now.
type Conn struct {
	*net.UnixConn
	Socket Info
}

// Plain returns a connection without what it knows: gRPC keeps no buffer of 32 KiB for an idle one if it sees that it is the system's own.
func Plain(conn net.Conn) net.Conn {
	if known, ok := conn.(Conn); ok {
		return known.UnixConn
	}
	return conn
}

// below returns a path relative to the root below which it is to lie.
func below(root, path string) (string, error) {
	rel, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(rel) || rel == "." {
		return "", fmt.Errorf("connect %s: it does not lie below %s: %w", path, root, syscall.EINVAL)
	}
	return rel, nil
}

// Probe finds out whether anyone accepts on the socket at path: it connects and closes the connection at once. It returns who listens, as
// [PeerOf] does. A full backlog means that somebody is there, so it is not an error, but the peer is then unknown (zero Credentials).
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

// IsRefused reports whether err says that there is something at the path on which nobody accepts: a socket whose listener is gone, or
// which is bound and not listening yet, or (on Linux) a file that is no socket.
func IsRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// IsGone reports whether err says that there is no socket at the path any more.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENOTSOCK)
}

// IsBusy reports whether err says that somebody listens on the socket and has a full backlog. Worth another try soon.
func IsBusy(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// MadeFor returns the name of the socket for which a file of [Make] is there, both without the directory.
func MadeFor(file string) (name string, is bool) {
	hidden, made := strings.CutSuffix(file, ".made")
	name, is = strings.CutPrefix(hidden, ".")
	return name, is && made
}

// Control runs f on the descriptor of what has one, which stays open meanwhile, and returns its error.
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
