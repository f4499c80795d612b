package dirwatch

import (
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// cause is why a path is looked at. It decides only how the absence of a socket is read.
type cause int

const (
	scanned cause = iota // a directory was read, or something changed there
	created              // a name appeared
	removed              // a name was unlinked: what was there is gone for good
	renamed              // a name was moved away: what was there may show up elsewhere
)

// look updates the facts about one name in d.
func (t *tree) look(d *dir, name string, why cause) {
	if sub := t.glance(d, name, why); sub != nil {
		t.visit(sub, deep)
	} else if len(d.leftOut) > 0 {
		d.unsure = true // one may have been left out that had been before: how many there are is what the next reading says
	}
}

// glance is look, but for what is in a directory that was not known, which is returned. It costs one system call.
func (t *tree) glance(d *dir, name string, why cause) (found *dir) {
	path := join(d.path, name)
	e, err := t.lookUp(d, path)
	// gofail: var dirwatchLook string
	// e, err = sock.Entry{}, errors.New(dirwatchLook)
	info := e.Info
	if err == nil && t.isForeign(path, e) {
		info.UID = d.owner // what the file system says is neither asked for nor believed
	} else if err == nil {
		if refused := t.judge(path, info); refused != nil {
			t.turnAway(d, name, info, refused, why)
			return nil
		}
	}
	if err == nil || gone(err) {
		t.pardon(d, name)
	}
	switch {
	case err == nil && info.IsSocket():
		t.present(d, name, path, info, why)
	case err == nil || gone(err):
		if e := t.socks[path]; e != nil {
			t.vanish(e, why)
		}
		if err == nil && info.Mode.IsDir() && t.dirs[path] == nil {
			return t.addDir(d, name, info.UID)
		}
	default:
		// What is there is not known, so no fact changes.
		t.fail(d, err)
	}
	return nil
}

// present states that a socket is at path.
func (t *tree) present(d *dir, name, path string, info sock.Info, why cause) {
	e := t.socks[path]
	if e != nil && e.info.ID == info.ID {
		t.stillPresent(e, d, info, why)
		return
	}
	if e == nil && len(d.socks) >= t.cfg.MaxSockets {
		t.exceed(d, &d.tooMany)
		return
	}
	if e != nil && why == renamed && e.held.IsZero() {
		// The old one was moved away and a new one is there already. Where the old one went is told next.
		t.hold(e)
		return
	}

	old := t.movedHere(info.ID)
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

func (t *tree) stillPresent(e *entry, d *dir, info sock.Info, why cause) {
	if why == removed && e.held.IsZero() {
		// Two sockets within one tick of the file system's clock, and on one inode number.
		t.facts = append(t.facts, Fact{Path: e.path, Root: d.root, Info: e.info}, Fact{Path: e.path, Root: d.root, Present: true, Info: info})
	} else if e.info != info {
		t.facts = append(t.facts, Fact{Path: e.path, Root: d.root, Present: true, Info: info})
	}
	e.info, e.held, e.seen = info, time.Time{}, t.round
	e.dir = d
	d.socks[e.name] = e
}

// movedHere returns the entry of a socket that has just been found at another path than its own, or nil if it has none or still is there
// too (a hard link).
func (t *tree) movedHere(id plugin.SocketID) *entry {
	old := t.byID[id]
	if old == nil {
		return nil
	}
	if there, err := sock.StatEntry(old.path, true); err == nil && there.ID == id {
		return nil
	}
	return old
}

// vanish handles that the socket of e is not at its path any more.
func (t *tree) vanish(e *entry, why cause) {
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
		if e.dir.tooMany { // there is room now for one that was left out, and no change will tell
			e.dir.unsure = true
			t.track(e.dir)
		}
	}
}

// gone reports whether err says that there is nothing at a path.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) }
