package sock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"
)

// Listener is a listening socket that owns its path. It is a [net.Listener].
type Listener struct {
	*Placed
	lock  *os.File
	close func() error // once
}

// Listen creates a stream socket at path for a program that must be the only one there, such as a daemon with its control socket. The
// directory must exist.
//
// It replaces a socket on which no process accepts. If a process accepts, the error wraps [ErrInUse]. It returns an error and changes
// nothing if the file is not a socket, or the path is too long for clients.
//
// Programs that start at the same time cannot take each other's socket, because the owner holds a lock (flock) on the hidden file
// .<name>.lock next to the socket until Close; the kernel releases it when the owner ends. No client can connect before the mode is set,
// because the socket is created in a private directory (mode 0700) and linked to its path when it listens. The link fails if a file exists,
// so programs that do not use the lock are safe, too.
//
// Listen blocks for at most a second: for an owner that does not listen yet or any more and, on Linux, for one that has ended while its
// last child, between fork and exec, still shares its descriptors.
func Listen(path string, mode fs.FileMode) (*Listener, error) {
	if err := checkLength(path); err != nil {
		return nil, err
	}
	// Each attempt may leave a connection in the backlog of an ended process, which must not become full.
	const patience, pause = time.Second, 10 * time.Millisecond
	for end := time.Now().Add(patience); ; {
		l, err := listen(path, mode)
		if !errors.Is(err, ErrInUse) || time.Now().After(end) || IsServed(path) {
			return l, err
		}
		<-time.After(pause) //nolint:forbidigo // there is no event for the release of a lock
	}
}

func listen(path string, mode fs.FileMode) (*Listener, error) {
	lock, err := acquire(path)
	if err != nil {
		return nil, err
	}
	placed, err := placeLocked(context.Background(), path, mode, nil)
	if err != nil {
		return nil, errors.Join(err, release(lock))
	}
	l := &Listener{Placed: placed, lock: lock}
	l.close = sync.OnceValue(func() error { return errors.Join(l.unlink(), l.Placed.Close(), release(l.lock)) })
	return l, nil
}

// IsServed reports whether a process that has not ended accepts at path, or may accept; see [Listen]. It blocks as [Dial] does.
func IsServed(path string) bool {
	conn, err := Dial(context.Background(), path)
	if err != nil {
		return !IsRefused(err) && !IsGone(err)
	}
	defer conn.Close()
	return !hasEnded(conn)
}

// Close stops listening and removes the socket file, unless another file is at its path by now. It may be called more than once.
func (l *Listener) Close() error { return l.close() }

func (l *Listener) unlink() error {
	// gofail: var sockUnlink string
	// return errors.New(sockUnlink)
	return removeSame(l.path, l.id)
}

// bindHidden listens at a hidden path and sets the mode.
func bindHidden(path string, mode fs.FileMode) (*net.UnixListener, Info, error) {
	l, err := bind(path)
	if err != nil {
		return nil, Info{}, err
	}
	l.SetUnlinkOnClose(false)
	info, err := Info{}, os.Chmod(path, mode)
	if err == nil {
		info, err = Stat(path)
	}
	if err != nil {
		return nil, Info{}, errors.Join(err, l.Close())
	}
	return l, info, nil
}

// look returns a connection to the process that accepts at path, or nil if the path is free (there is zero) or no process accepts. It fails
// if the file is not a socket, or if neither can be established.
func look(ctx context.Context, path string) (living *net.UnixConn, there Info, err error) {
	there, err = Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, Info{}, nil
	case err != nil:
		return nil, Info{}, fmt.Errorf("cannot listen on %s: %w", path, err)
	case !there.IsSocket():
		return nil, Info{}, fmt.Errorf("cannot listen on %s: there is something that is not a socket (%s); remove it or choose another path",
			path, there.Mode)
	}
	living, err = Dial(ctx, path)
	switch {
	case err == nil:
		return living, there, nil
	case IsBusy(err):
		return nil, Info{}, inUse(path, nil)
	case IsGone(err):
		return nil, Info{}, nil
	case IsRefused(err):
		return nil, there, nil
	}
	return nil, Info{}, fmt.Errorf("cannot listen on %s: a socket is there, and it is not clear whether anyone accepts on it: %w",
		path, err)
}

// removeStale removes the file that look found, unless it was replaced in the meantime.
func removeStale(path string, there Info) error {
	if there.ID.IsZero() {
		return nil
	}
	if now, err := Stat(path); err != nil || now.ID != there.ID {
		return nil //nolint:nilerr // the next link fails, and place checks the path again
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot listen on %s: remove the stale socket: %w", path, err)
	}
	return nil
}

// checkLength returns an error for a path that is too long for clients.
func checkLength(path string) error {
	if len(path) <= MaxPath {
		return nil
	}
	return fmt.Errorf("cannot listen on %s: the path has %d bytes and a socket's path may have %d; choose a shorter one",
		path, len(path), MaxPath)
}

// inUse returns the error for a path that another process owns: the peer of living, or an unknown process if living is nil.
func inUse(path string, living *net.UnixConn) error {
	who := ""
	if living != nil {
		if peer, err := PeerOf(living); err == nil && peer.PID > 0 {
			who = fmt.Sprintf(" (pid %d)", peer.PID)
		}
	}
	return fmt.Errorf("%w on %s%s: stop it or choose another path", ErrInUse, path, who)
}
