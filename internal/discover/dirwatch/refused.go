package dirwatch

import (
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// maxRefused and maxUserRefused bound how many refusals are remembered, in all and of what is one user's: whoever may make files in a
// directory could make any number that are refused.
const maxRefused, maxUserRefused = 1000, 250

type refusal struct {
	Refusal
	by   uint32 // as whose it is counted
	seen uint64 // round in which the reading of its directory met it
}

// judge says why what is at path is not to be used; nil if it is, or if it is of no interest.
func (t *tree) judge(path string, info sock.Info) error {
	if info.Mode&(fs.ModeSocket|fs.ModeDir|fs.ModeSymlink) == 0 {
		return nil
	}
	return t.cfg.Judge.Admit(path, info)
}

// turnAway handles that what has a name in d is refused: what was there before, or was trusted before, is gone.
func (t *tree) turnAway(d *dir, name string, info sock.Info, err error, why cause) {
	path := join(d.path, name)
	if e := t.socks[path]; e != nil {
		if e.info.ID == info.ID {
			why = removed
		}
		t.vanish(e, why)
	}
	if sub := t.dirs[path]; sub != nil {
		t.drop(sub, removed)
	}
	t.refuse(d, name, info, err)
}

// refuse records that what has a name in d is refused. The empty name is d itself.
func (t *tree) refuse(d *dir, name string, info sock.Info, err error) {
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
		r.Info, r.Err, t.newRefused, t.changed = info, err, true, true
	}
}

func (t *tree) pardon(d *dir, name string) {
	if r := d.refused[name]; r != nil {
		delete(d.refused, name)
		t.refusals.Release(r.by, 1)
		t.newRefused, t.changed = true, true
	}
}

// refreshRefused updates the list of refusals and reports whether it changed.
func (t *tree) refreshRefused() bool {
	if !t.newRefused {
		return false
	}
	t.newRefused = false
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
