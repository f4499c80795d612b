package sock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// placeWait is how long a program waits for the lock of a path; placePause is the time between two attempts, because flock(2) has no
	// timeout.
	placeWait  = 5 * time.Second
	placePause = 2 * time.Millisecond
)

// Placed is a listening socket that a later one can replace while it serves, and that may have replaced an earlier one. It is a
// [net.Listener]; its Close does not remove the file. Commit and Withdraw are not safe for concurrent use.
type Placed struct {
	*net.UnixListener
	path     string
	id       plugin.SocketID
	replaced plugin.SocketID // the socket in use that it replaced, until Commit
	taken    bool            // by TakeMade, at a path that the host gives to no other process
}

// Place creates a stream socket at path for a program that a newer one can replace without a gap. The directory must exist. The socket
// appears at path when it listens and has its mode.
//
// Place replaces a socket on which no process accepts. If a process accepts, Place calls replace with a connection to it, and closes the
// connection afterwards. If replace returns nil, the new socket is renamed over the old one; otherwise Place returns the error. If replace
// is nil, the error wraps [ErrInUse]. The old socket keeps a hidden name until [Placed.Commit], so that [Placed.Withdraw] can restore it.
// If the program ends before Commit, the next Place restores it.
//
// Unlike [Listen], Place and the methods of Placed hold the lock only while they change files. If two programs start at the same time, the
// second one finds the first one listening.
func Place(ctx context.Context, path string, mode fs.FileMode, replace func(living *net.UnixConn) error) (*Placed, error) {
	if err := checkLength(path); err != nil {
		return nil, err
	}
	lock, err := acquireSoon(ctx, path)
	if err != nil {
		return nil, err
	}
	p, err := placeLocked(ctx, path, mode, replace)
	if rerr := release(lock); rerr != nil {
		if p != nil {
			rerr = errors.Join(rerr, p.Close(), removeSame(path, p.id))
		}
		return nil, errors.Join(err, rerr)
	}
	return p, err
}

// Flush blocks until the replaced socket has accepted all its clients, if its server speaks first, or ctx is done. Call it before Commit.
// It connects by the hidden name, after all other clients.
func (p *Placed) Flush(ctx context.Context) error {
	if p.replaced.IsZero() {
		return nil
	}
	conn, err := Dial(ctx, beside(p.path, "previous"))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	_, err = conn.Read(make([]byte, 1))
	return errors.Join(err, conn.Close())
}

// Commit removes the replaced socket, which cannot be restored afterwards.
func (p *Placed) Commit(ctx context.Context) error {
	if p.replaced.IsZero() {
		return nil
	}
	lock, err := acquireSoon(ctx, p.path)
	if IsGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = removeSame(beside(p.path, "previous"), p.replaced)
	p.replaced = plugin.SocketID{}
	return errors.Join(err, release(lock))
}

// Withdraw removes the socket from its path; another socket there stays. Before Commit, it restores the replaced socket in the same step if
// a process still accepts on it, and returns true. Call it before Close: while the socket is open, its inode number cannot be reused.
func (p *Placed) Withdraw(ctx context.Context) (restored bool, err error) {
	// gofail: var sockWithdraw string
	// return false, errors.New(sockWithdraw)
	if p.taken {
		return false, removeSame(p.path, p.id)
	}
	lock, err := acquireSoon(ctx, p.path)
	if IsGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, release(lock)) }()
	previous := beside(p.path, "previous")
	if !p.replaced.IsZero() && isAt(p.path, p.id) && isAt(previous, p.replaced) {
		if _, err := Probe(ctx, previous); err == nil {
			return true, os.Rename(previous, p.path)
		}
	}
	err = errors.Join(removeSame(p.path, p.id), removeSame(previous, p.id)) // a newer socket may have replaced p
	if !p.replaced.IsZero() {
		err = errors.Join(err, removeSame(previous, p.replaced))
	}
	return false, err
}

// Addr returns the path of the socket.
func (p *Placed) Addr() net.Addr { return &net.UnixAddr{Name: p.path, Net: "unix"} }

// placeLocked does the work of Place and Listen. The caller holds the lock, so existing files with hidden names were left by killed
// programs.
func placeLocked(ctx context.Context, path string, mode fs.FileMode, replace func(*net.UnixConn) error) (*Placed, error) {
	private := beside(path, "new")
	if err := os.RemoveAll(private); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	if err := os.Mkdir(private, 0o700); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	return placeFrom(ctx, private, path, mode, replace)
}

// placeFrom creates a listening socket in a private directory, moves it to its path, and removes the directory.
func placeFrom(
	ctx context.Context, private, path string, mode fs.FileMode, replace func(*net.UnixConn) error,
) (_ *Placed, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	hidden := filepath.Join(private, inPrivate)
	l, info, err := bindHidden(hidden, mode)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	p := &Placed{UnixListener: l, path: path, id: info.ID}
	if err := p.place(ctx, hidden, replace); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return p, nil
}

func (p *Placed) place(ctx context.Context, hidden string, replace func(*net.UnixConn) error) error {
	for {
		living, there, err := look(ctx, p.path)
		if err != nil {
			return err
		}
		if living != nil {
			if replace == nil {
				return errors.Join(inUse(p.path, living), living.Close())
			}
			err := replace(living)
			_ = living.Close() // replace may have closed it
			if err != nil {
				return err
			}
			if done, err := p.supersede(hidden, there); done || err != nil {
				return err
			}
			continue
		}
		if back, err := putBack(ctx, p.path); err != nil {
			return err
		} else if back {
			continue
		}
		if err := removeStale(p.path, there); err != nil {
			return err
		}
		// gofail: var sockPlaceLink struct{}
		// hidden += ".gone"
		err = os.Link(hidden, p.path)
		if errors.Is(err, fs.ErrExist) {
			continue // created by a program that does not use the lock: check it
		}
		if err != nil {
			return fmt.Errorf("cannot listen on %s: %w", p.path, err)
		}
		return nil
	}
}

// supersede renames the hidden socket over the current one, which keeps a hidden name. It returns false if another socket is at the path.
func (p *Placed) supersede(hidden string, there Info) (bool, error) {
	previous := beside(p.path, "previous")
	if err := os.Remove(previous); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot take the place of %s: %w", p.path, err)
	}
	if err := os.Link(p.path, previous); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("cannot take the place of %s: keep the old socket under another name: %w", p.path, err)
	}
	if !isAt(previous, there.ID) {
		return false, os.Remove(previous)
	}
	if err := os.Rename(hidden, p.path); err != nil {
		return false, errors.Join(fmt.Errorf("cannot take the place of %s: %w", p.path, err), os.Remove(previous))
	}
	p.replaced = there.ID
	return true, nil
}

// putBack restores a socket that was replaced by a program that was killed before Commit. It is called if no process accepts at the path.
func putBack(ctx context.Context, path string) (bool, error) {
	previous := beside(path, "previous")
	living, there, err := look(ctx, previous)
	if err != nil {
		return false, err
	}
	if living == nil {
		return false, removeStale(previous, there)
	}
	return true, errors.Join(os.Rename(previous, path), living.Close())
}

// acquireSoon takes the lock of a path and waits for at most placeWait while another process holds it.
func acquireSoon(ctx context.Context, path string) (*os.File, error) {
	deadline := time.NewTimer(placeWait)
	defer deadline.Stop()
	for {
		lock, err := acquire(path)
		if !errors.Is(err, ErrInUse) {
			return lock, err
		}
		pause := time.NewTimer(placePause)
		select {
		case <-pause.C:
		case <-deadline.C:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Traces returns the files that [Make], or a program that is killed in [Place] or [Listen], may leave next to path. They can be removed in
// this order while no process runs these functions.
func Traces(path string) []string {
	private := beside(path, "new")
	return []string{filepath.Join(private, inPrivate), private, beside(path, "previous"), beside(path, "lock"), beside(path, "made")}
}

const inPrivate = "s"

func beside(path, purpose string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+purpose)
}

func isAt(path string, id plugin.SocketID) bool {
	info, err := Stat(path)
	return err == nil && info.is(id)
}

// is reports whether info is that of a socket. Its inode number is unique while it is open; afterwards the birth time distinguishes it. If
// the system has no birth time, Birth is the time of the last change, which a new link changes, so it is not compared.
func (i Info) is(id plugin.SocketID) bool {
	return i.ID.Device == id.Device && i.ID.Inode == id.Inode && (i.ID.Birth == id.Birth || !i.born)
}

// IsAnothers reports whether the socket at path belongs to another process, so that it must not be removed: it is not the bound socket or,
// if bound is zero because it is not known, another process accepts on it. It returns false for a file that is not a socket, and the error
// of Stat if there is none.
func IsAnothers(path string, bound plugin.SocketID) (bool, error) {
	info, err := Stat(path)
	if err != nil || !info.IsSocket() {
		return false, err
	}
	if !bound.IsZero() {
		return !info.is(bound), nil
	}
	conn, err := DialKnown(context.Background(), path)
	if err != nil {
		return !IsRefused(err) && !IsGone(err), nil
	}
	defer conn.Close()
	peer, err := PeerOf(conn.UnixConn)
	return (err != nil || peer.PID != os.Getpid()) && !hasEnded(conn.UnixConn), nil
}

func removeSame(path string, id plugin.SocketID) error {
	if !isAt(path, id) {
		return nil
	}
	return os.Remove(path)
}
