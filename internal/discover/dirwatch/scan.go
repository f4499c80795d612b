package dirwatch

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

type reach int

const (
	shallow reach = iota // the directory, and subdirectories that were not known
	deep                 // everything below, with all watches made again
)

const (
	// clockGrain is more than the granularity of any file system's timestamps. A directory that was read sooner than that after its last
	// change is read once more, because another change may have left the same timestamp.
	clockGrain = 2 * time.Second
	// readBatch bounds the memory that reading a huge directory takes.
	readBatch = 1024
)

func (t *tree) scanAll() {
	start := len(t.facts)
	for _, d := range t.roots {
		t.visit(d, deep)
	}
	t.sortScan(start)
}

// calm is how many scan intervals there are from one safety scan to the next while the tree is settled. Each wakes an idle process, which
// costs more than the scan itself.
const calm = 8

// settled reports whether every change that matters can be expected to be told, but for one that puts another directory in a root's place.
func (t *tree) settled() bool {
	return t.notifier != nil && t.mounts != nil && len(t.polled) == 0 && len(t.untold) == 0 && t.refusals.Sum() == 0
}

// planScan notes when the last safety scan was, and draws when the next one is: daemons of a machine do not scan in step.
func (t *tree) planScan() {
	t.scannedAt = time.Now()
	t.scanAfter = t.cfg.scanInterval - rand.N(t.cfg.scanInterval/4+1)
	t.rootsAt = t.scannedAt.Add(t.scanAfter)
}

// checkRoots looks whether other directories are where the roots were. No event tells of that if it was done above a root, nor as long as
// something keeps the directory that was removed alive: a plugin that still listens in it, or works there.
func (t *tree) checkRoots() {
	t.rootsAt = time.Now().Add(t.scanAfter)
	start := len(t.facts)
	for _, d := range t.roots {
		if e, err := t.stat(d); err != nil || e.ID != d.info.ID || e.Mount != d.mount {
			t.visit(d, deep)
		}
	}
	t.sortScan(start)
}

func (t *tree) scanDeadline() time.Time {
	if t.settled() {
		return t.scannedAt.Add(calm * t.scanAfter)
	}
	return t.scannedAt.Add(t.scanAfter)
}

// safetyScan looks at every directory and reads those that changed without it being known.
func (t *tree) safetyScan() {
	defer t.planScan()
	freed := t.freed // what is given back during the scan counts for the next one
	if t.mounts == nil {
		t.mounts, _ = openMounts()
	}
	if t.notifier == nil {
		if t.openNotifier(); t.notifier != nil {
			t.scanAll()
			return
		}
	}
	start := len(t.facts)
	for _, path := range slices.Sorted(maps.Keys(t.dirs)) {
		if d := t.dirs[path]; d != nil {
			t.inspect(d)
		}
	}
	t.sought = freed
	t.sortScan(start)
}

// inspect visits a directory if it is not what it was when it was read.
func (t *tree) inspect(d *dir) {
	now, err := t.stat(d)
	switch {
	case err != nil, now.ID != d.info.ID, now.Mount != d.mount:
		t.visit(d, deep)
	case d.readErr != nil, now.Info != d.info, !d.watched && t.tryWatch(d), d.unsure, t.mayHaveRoom(d), !now.ModTime.Equal(d.mtime):
		news := len(t.facts) + len(t.holds)
		t.visit(d, shallow)
		if d.watched && len(t.facts)+len(t.holds) > news && t.known(d) {
			// No event told. The watch may be dead without a word, as after an unmount.
			t.unwatch(d)
			t.visit(d, shallow)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.refused)) {
		if name != "" && t.known(d) {
			t.look(d, name, scanned) // no change to d tells that it was repaired
		}
	}
}

// visit makes the watcher right about a directory: watches it, reads it, and does the same for subdirectories. The watch comes before the
// reading, so that nothing can appear between the two.
func (t *tree) visit(d *dir, how reach) {
	e, err := t.stat(d)
	info := e.Info
	if err != nil {
		t.lose(d, e, err)
		return
	}
	refused := t.judge(d.path, info)
	if refused != nil && d.parent != nil {
		t.turnAway(d.parent, d.name, info, refused, scanned)
		return
	}
	if d.parent != nil && !t.count(d, info.UID) {
		t.leaveOut(d.parent, info.UID)
		t.drop(d, removed)
		return
	}
	if how == deep || info.ID != d.info.ID || e.Mount != d.mount {
		t.unwatch(d)
	}
	d.info, d.mtime, d.mount = info, e.ModTime, e.Mount
	if refused != nil {
		t.empty(d, removed)
		t.tryWatch(d)
		t.refuse(d, "", d.info, refused)
		t.fail(d, refused)
		return
	}
	t.pardon(d, "")
	t.tryWatch(d)
	d.unsure = time.Since(d.mtime).Abs() < clockGrain
	t.round++
	round := t.round
	tooDeep, tooMany, leftOut := d.tooDeep, d.tooMany, d.leftOut
	d.tooDeep, d.tooMany, d.leftOut = false, false, nil
	t.changed = t.changed || d.readErr != nil
	d.readErr = nil
	if err := t.read(d); err != nil {
		t.fail(d, err)
	} else {
		t.missing(d, round)
	}
	t.changed = t.changed || d.tooDeep != tooDeep || d.tooMany != tooMany || !maps.Equal(d.leftOut, leftOut)
	t.track(d)

	for _, sub := range slices.Sorted(maps.Keys(d.dirs)) {
		if c := d.dirs[sub]; c != nil && (how == deep || c.info.ID.IsZero()) {
			t.visit(c, how)
		}
	}
}

// lose handles that a directory cannot be searched.
func (t *tree) lose(d *dir, e sock.Entry, err error) {
	if errors.Is(err, errForeign) {
		t.empty(d, removed) // what is mounted hides it
		d.mount, d.tooDeep, d.tooMany, d.leftOut = 0, false, false, nil
		if fileSystemAt(d.path) != "" { // else the next look asks again
			d.mount = e.Mount
		}
	}
	if gone(err) {
		t.drop(d, scanned)
	}
	if t.known(d) {
		t.unwatch(d)
		d.info = sock.Info{}
		t.fail(d, err)
	}
}

// read looks at every name in d. Subdirectories that were not known are recorded, and not visited.
func (t *tree) read(d *dir) error {
	round := t.round
	f, err := openDir(d.path, d.parent == nil, d.mount)
	if err != nil {
		return err
	}
	defer f.Close()
	d.silent = !tells(f)
	if d.parent == nil {
		link, err := os.Lstat(d.path)
		d.silent = d.silent || err != nil || link.Mode()&fs.ModeSymlink != 0 // no event tells where a link leads from now on
	}
	for {
		// gofail: var dirwatchRead string
		// return errors.New(dirwatchRead)
		names, err := f.ReadDir(readBatch)
		for _, n := range names {
			switch {
			case n.Type()&(fs.ModeSocket|fs.ModeDir|fs.ModeSymlink) == 0 || t.skip(d, n.Name()):
			case n.IsDir() && d.dirs[n.Name()] != nil:
				d.dirs[n.Name()].seen = round
			default:
				if sub := t.glance(d, n.Name(), scanned); sub != nil {
					sub.seen = round
				}
				if e := d.socks[n.Name()]; e != nil {
					e.seen = round
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// missing looks at the names that were known in d and that the reading of the given round did not meet.
func (t *tree) missing(d *dir, round uint64) {
	for name, e := range d.socks {
		if e.seen != round {
			t.look(d, name, scanned)
		}
	}
	for name, r := range d.refused {
		if r.seen != round && name != "" {
			t.look(d, name, scanned)
		}
	}
	for _, sub := range d.dirs {
		if sub.seen == round {
			continue
		}
		if _, err := t.stat(sub); err != nil {
			t.drop(sub, scanned)
		}
	}
}

// stat describes a directory. Only a root may be a symbolic link.
func (t *tree) stat(d *dir) (e sock.Entry, err error) {
	// gofail: var dirwatchStat string
	// return sock.Entry{}, errors.New(dirwatchStat)
	if d.parent != nil {
		e, err = t.lookUp(d.parent, d.path)
	} else if e, err = sock.StatEntry(d.path, false); err == nil && e.Mode&fs.ModeSymlink != 0 {
		var path string
		if path, err = filepath.EvalSymlinks(d.path); err == nil {
			e, err = sock.StatEntry(path, false)
		}
	}
	switch {
	case err != nil:
		return sock.Entry{}, err
	case d.parent != nil && t.isForeign(d.path, e):
		return e, errForeign
	case !e.Mode.IsDir():
		return sock.Entry{}, &fs.PathError{Op: "read", Path: d.path, Err: syscall.ENOTDIR}
	}
	return e, nil
}

func (t *tree) fail(d *dir, err error) {
	if d.readErr == nil || d.readErr.Error() != err.Error() {
		t.changed = true
	}
	d.readErr = err
	t.track(d)
}

// sortScan puts the facts of one scan into the order in which the sockets were born.
func (t *tree) sortScan(start int) {
	slices.SortStableFunc(t.facts[start:], func(a, b Fact) int {
		return cmp.Or(cmp.Compare(a.Info.ID.Birth, b.Info.ID.Birth), strings.Compare(a.Path, b.Path))
	})
}
