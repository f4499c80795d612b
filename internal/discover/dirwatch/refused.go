package dirwatch

import (
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// maxRefused and maxUserRefused limit the recorded refusals, in total and for the files of one user, because users can create any number of
// such files.
const maxRefused, maxUserRefused = 1000, 250

type refusal struct {
	Refusal
	by   uint32 // the user in the quota
	seen uint64 // the round in which the name was last found
}

// judge returns the error of [Watcher].Judge for the file at path; nil if it is not a directory, socket or symbolic link.
func (t *tree) judge(path string, info sock.Info) error {
	if info.Mode&(fs.ModeSocket|fs.ModeDir|fs.ModeSymlink) == 0 {
		return nil
	}
	return t.w.Judge.Admit(path, info)
}

// handleRefused records that a name in d is refused, and removes the socket or directory that was known under that name.
func (t *tree) handleRefused(d *dir, name string, info sock.Info, err error, why cause) {
	path := join(d.path, name)
	if e := t.socks[path]; e != nil {
		if e.info.ID == info.ID {
			why = removed
		}
		t.removeSocket(e, why)
	}
	if sub := t.dirs[path]; sub != nil {
		t.drop(sub, removed)
	}
	t.recordRefusal(d, name, info, err)
}

// recordRefusal records that a name in d is refused. An empty name means d itself.
func (t *tree) recordRefusal(d *dir, name string, info sock.Info, err error) {
	r := d.refused[name]
	if r == nil {
		if t.refusals.Take(info.UID, 1) != nil {
			return
		}
		path := d.path
		if name != "" {
			path = join(d.path, name)
		}
		r = &refusal{Refusal: Refusal{Path: path, Since: time.Now()}, by: info.UID}
		if d.refused == nil {
			d.refused = map[string]*refusal{}
		}
		d.refused[name] = r
	}
	r.seen = t.round
	if r.Err == nil || r.Info != info || r.Err.Error() != err.Error() {
		r.Info, r.Err, t.refusedChanged, t.changed = info, err, true, true
	}
}

func (t *tree) clearRefusal(d *dir, name string) {
	if r := d.refused[name]; r != nil {
		delete(d.refused, name)
		t.refusals.Release(r.by, 1)
		t.refusedChanged, t.changed = true, true
	}
}

// refreshRefused updates the list of refusals and reports whether it changed.
func (t *tree) refreshRefused() bool {
	if !t.refusedChanged {
		return false
	}
	t.refusedChanged = false
	var list []Refusal
	for _, d := range t.dirs {
		for _, r := range d.refused {
			list = append(list, r.Refusal)
		}
	}
	slices.SortFunc(list, func(a, b Refusal) int { return strings.Compare(a.Path, b.Path) })
	t.refused = list
	return true
}
