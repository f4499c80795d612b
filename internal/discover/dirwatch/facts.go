package dirwatch

import (
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// cause is the reason for checking a path. It matters only if a socket is absent.
type cause int

const (
	scanned cause = iota // the directory was read or has changed
	created              // the name was created
	removed              // the name was unlinked, so the socket is gone
	renamed              // the name was renamed, so the socket may be at another path
)

// update updates the facts about one name in d.
func (t *tree) update(d *dir, name string, why cause) {
	if sub := t.updateEntry(d, name, why); sub != nil {
		t.visit(sub, deep)
	} else if len(d.overLimit) > 0 {
		d.reread = true // so that the next read counts the directories over the limits again
	}
}

// updateEntry updates the facts about one name in d, with one system call. It returns a directory that was not known before, which the
// caller must visit.
func (t *tree) updateEntry(d *dir, name string, why cause) (found *dir) {
	path := join(d.path, name)
	e, err := t.lookUp(d, path)
	// gofail: var dirwatchLook string
	// e, err = sock.Entry{}, errors.New(dirwatchLook)
	info := e.Info
	if err == nil && t.isForeign(path, e) {
		info.UID = d.owner // the owner is neither requested from the file system nor trusted
	} else if err == nil {
		if refused := t.judge(path, info); refused != nil {
			t.handleRefused(d, name, info, refused, why)
			return nil
		}
	}
	if err == nil || isGone(err) {
		t.clearRefusal(d, name)
	}
	switch {
	case err == nil && info.IsSocket():
		t.addSocket(d, name, path, info, why)
	case err == nil || isGone(err):
		if e := t.socks[path]; e != nil {
			t.removeSocket(e, why)
		}
		if err == nil && info.Mode.IsDir() && t.dirs[path] == nil {
			return t.addDir(d, name, info.UID)
		}
	default:
		// The state of the path is unknown, so no fact changes.
		t.setReadErr(d, err)
	}
	return nil
}

// addSocket records a socket at path.
func (t *tree) addSocket(d *dir, name, path string, info sock.Info, why cause) {
	e := t.socks[path]
	if e != nil && e.info.ID == info.ID {
		t.refreshSocket(e, d, info, why)
		return
	}
	if e == nil && len(d.socks) >= t.w.MaxSockets {
		t.setLimitFlag(d, &d.tooMany)
		return
	}
	if e != nil && why == renamed && e.held.IsZero() {
		// The old socket was moved away, and a new one exists already. The next event has the new path of the old one.
		t.hold(e)
		return
	}

	old := t.movedFrom(info.ID)
	if e != nil {
		t.forget(e)
	}
	n := &entry{path: path, name: name, dir: d, info: info, seen: t.round}
	t.socks[path], d.socks[name], t.byID[info.ID] = n, n, n
	fact := Fact{Path: path, Root: d.root, Present: true, Info: info}
	if old != nil {
		t.forget(old)
		fact.MovedFrom = old.path
	}
	t.facts = append(t.facts, fact)
}

func (t *tree) refreshSocket(e *entry, d *dir, info sock.Info, why cause) {
	if why == removed && e.held.IsZero() {
		// A new socket got the inode number of the old one within one tick of the file system's clock.
		t.facts = append(t.facts, Fact{Path: e.path, Root: d.root, Info: e.info}, Fact{Path: e.path, Root: d.root, Present: true, Info: info})
	} else if e.info != info {
		t.facts = append(t.facts, Fact{Path: e.path, Root: d.root, Present: true, Info: info})
	}
	e.info, e.held, e.seen = info, time.Time{}, t.round
	e.dir = d
	d.socks[e.name] = e
}

// movedFrom returns the entry from which a socket was moved. It returns nil if the socket is new, or is still at the old path because the
// new path is a hard link.
func (t *tree) movedFrom(id plugin.SocketID) *entry {
	old := t.byID[id]
	if old == nil {
		return nil
	}
	if there, err := sock.StatEntry(old.path, true); err == nil && there.ID == id {
		return nil
	}
	return old
}

// removeSocket handles that the socket of e is not at its path any more. Unless it was unlinked, it is held first.
func (t *tree) removeSocket(e *entry, why cause) {
	if why != removed {
		t.hold(e)
		return
	}
	t.forget(e)
	t.facts = append(t.facts, Fact{Path: e.path, Root: e.dir.root, Info: e.info})
}

func (t *tree) forget(e *entry) {
	delete(t.socks, e.path)
	if t.byID[e.info.ID] == e {
		delete(t.byID, e.info.ID)
	}
	if e.dir.socks[e.name] == e {
		delete(e.dir.socks, e.name)
		if e.dir.tooMany { // there is room for another socket, for which there will be no event
			e.dir.reread = true
			t.track(e.dir)
		}
	}
}

// isGone reports whether err means that nothing exists at a path.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) }
