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
	// placeWait bounds how long a program waits for another that decides about the same path, placePause is how often it looks: flock(2)
	// cannot be waited for with a deadline.
	placeWait  = 5 * time.Second
	placePause = 2 * time.Millisecond
)

// Placed is a listening socket whose place a later one may take while it serves, as it may have taken the place of one before it. It is a
// [net.Listener]; its Close leaves the file alone. Commit and Withdraw are for one goroutine at a time.
type Placed struct {
	*net.UnixListener
	path     string
	id       plugin.SocketID
	replaced plugin.SocketID // the living socket whose place it took, until Commit
}

// Place makes a stream socket at path for a program that may be replaced by the next of its kind without a moment in which nobody listens
// there. The directory must exist. Nobody meets the socket before it listens and has its mode.
//
// A socket on which nobody accepts is replaced. Somebody who lives there is shown to replace as a connection, which is closed afterwards:
// if it returns nil the new socket is renamed over the path, else Place fails with its error. A nil replace gives an error that wraps
// [ErrInUse]. The replaced socket keeps a hidden name until [Placed.Commit], so that [Placed.Withdraw] can put it back; if the program
// dies in between, the next Place does.
//
// Unlike that of [Listen] the lock is held only while something at the path changes. Of programs that start at the same moment the second
// meets the first alive.
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

// Flush blocks until all who had connected to the socket that was replaced are accepted there, by a server that speaks first, or ctx ends.
// It comes before Commit: it connects by the name that nobody else knows, and so as the last.
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

// Commit forgets the socket that was replaced: there is no way back to it.
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

// Withdraw takes the socket from its path, where another one stays. A socket that it replaced is put back in the same step if it lives and
// there was no Commit; restored says so. Withdraw comes before Close: while the socket is open, no other can have its identity.
func (p *Placed) Withdraw(ctx context.Context) (restored bool, err error) {
	// gofail: var sockWithdraw string
	// return false, errors.New(sockWithdraw)
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
	err = errors.Join(removeSame(p.path, p.id), removeSame(previous, p.id)) // it may itself have been replaced
	if !p.replaced.IsZero() {
		err = errors.Join(err, removeSame(previous, p.replaced))
	}
	return false, err
}

// Addr returns the path at which the socket was made.
func (p *Placed) Addr() net.Addr { return &net.UnixAddr{Name: p.path, Net: "unix"} }

// placeLocked does the work of Place and Listen. The caller holds the lock, so a file that already has one of the hidden names was left by
// a program that was killed.
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

// placeFrom makes a listening socket in a private directory, which it removes, and brings it to its path.
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
			continue // made by a program that does not know the lock: judge it
		}
		if err != nil {
			return fmt.Errorf("cannot listen on %s: %w", p.path, err)
		}
		return nil
	}
}

// supersede renames the hidden socket over the living one, which gets another name. It reports false if a different socket is at the path.
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

// putBack restores a living socket that was replaced by a program which was killed before its Commit. It is called when no process accepts
// at the path.
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

// Traces returns the files that [Make], or a program that is killed in [Place] or [Listen], may leave beside path. They can be removed in
// this order when no process is in these functions.
func Traces(path string) []string {
	private := beside(path, "new")
	return []string{filepath.Join(private, inPrivate), private, beside(path, "previous"), beside(path, "lock"), beside(path, "made")}
}

const inPrivate = "s"

func beside(path, purpose string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+purpose)
}

// isAt reports whether a socket is at path. Its inode number tells it from all others as long as it is open, and its birth time after
// that. Where there is none, a new name changes the time that stands for it, so that is not compared.
func isAt(path string, id plugin.SocketID) bool {
	info, err := Stat(path)
	return err == nil && info.ID.Device == id.Device && info.ID.Inode == id.Inode && (info.ID.Birth == id.Birth || !info.born)
}

// IsAnothers reports whether the socket at path belongs to another process, so that the owner of the path must not remove it after its own
// process has exited: it is not the socket that was bound or, if bound is zero because that is not known, another process accepts on it. A
// file that is not a socket belongs to none.
func IsAnothers(path string, bound plugin.SocketID) bool {
	if info, err := Stat(path); err != nil || !info.IsSocket() {
		return false
	}
	if !bound.IsZero() {
		return !isAt(path, bound)
	}
	conn, err := DialKnown(context.Background(), path)
	if err != nil {
		return !IsRefused(err) && !IsGone(err)
	}
	defer conn.Close()
	peer, err := PeerOf(conn.UnixConn)
	return (err != nil || peer.PID != os.Getpid()) && !hasEnded(conn.UnixConn)
}

func removeSame(path string, id plugin.SocketID) error {
	if !isAt(path, id) {
		return nil
	}
	return os.Remove(path)
}
