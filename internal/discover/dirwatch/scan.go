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

type visitDepth int

const (
	shallow visitDepth = iota // the directory, and subdirectories that were not known
	deep                      // everything below; all watches are replaced
)

const (
	// clockGrain is longer than the resolution of timestamps on any file system. If a directory changed less than clockGrain before it was
	// read, it is read again later, because a further change may have the same timestamp.
	clockGrain = 2 * time.Second
	// readBatch is how many entries of a directory are read at a time.
	readBatch = 1024
)

func (t *tree) scanAll() {
	start := len(t.facts)
	for _, d := range t.roots {
		t.visit(d, deep)
	}
	t.sortScan(start)
}

// settledFactor is the number of scan intervals between two safety scans while the tree is settled. The interval is long because each scan
// wakes up an idle process.
const settledFactor = 8

// settled reports whether there are events for all relevant changes, except for the replacement of a root by another directory.
func (t *tree) settled() bool {
	return t.notifier != nil && t.mounts != nil && len(t.polled) == 0 && len(t.incomplete) == 0 && t.refusals.Sum() == 0
}

// planScan sets a random time for the next safety scan, so that the daemons of a machine do not scan simultaneously.
func (t *tree) planScan() {
	t.scannedAt = time.Now()
	t.scanAfter = t.w.scanInterval - rand.N(t.w.scanInterval/4+1)
	t.rootsAt = t.scannedAt.Add(t.scanAfter)
}

// checkRoots visits the roots that were replaced by other directories. This causes no event if a parent directory was renamed, or if a
// process still uses the removed directory, for example as its working directory.
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
		return t.scannedAt.Add(settledFactor * t.scanAfter)
	}
	return t.scannedAt.Add(t.scanAfter)
}

// safetyScan checks all directories, and reads those that have changed without an event.
func (t *tree) safetyScan() {
	defer t.planScan()
	freed := t.freed // directories that are freed during the scan count for the next one
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
	t.freedAtScan = freed
	t.sortScan(start)
}

// inspect visits a directory if it has changed since it was read.
func (t *tree) inspect(d *dir) {
	now, err := t.stat(d)
	switch {
	case err != nil, now.ID != d.info.ID, now.Mount != d.mount:
		t.visit(d, deep)
	case d.readErr != nil, now.Info != d.info, !d.watched && t.tryWatch(d), d.reread, t.mayFitNow(d), !now.ModTime.Equal(d.mtime):
		news := len(t.facts) + len(t.holds)
		t.visit(d, shallow)
		if d.watched && len(t.facts)+len(t.holds) > news && t.known(d) {
			// There was no event, so the watch may have ended, as it does after an unmount.
			t.unwatch(d)
			t.visit(d, shallow)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.refused)) {
		if name != "" && t.known(d) {
			t.update(d, name, scanned) // a change of the mode of the refused file does not change d
		}
	}
}

// visit watches a directory, reads it and visits its subdirectories. It adds the watch before it reads, so that it misses no change.
func (t *tree) visit(d *dir, how visitDepth) {
	e, err := t.stat(d)
	info := e.Info
	if err != nil {
		t.visitFailed(d, e, err)
		return
	}
	refused := t.judge(d.path, info)
	if refused != nil && d.parent != nil {
		t.handleRefused(d.parent, d.name, info, refused, scanned)
		return
	}
	if d.parent != nil && !t.takeQuota(d, info.UID) {
		t.addOverLimit(d.parent, info.UID)
		t.drop(d, removed)
		return
	}
	if how == deep || info.ID != d.info.ID || e.Mount != d.mount {
		t.unwatch(d)
	}
	d.info, d.mtime, d.mount = info, e.ModTime, e.Mount
	if refused != nil {
		t.dropContents(d, removed)
		t.tryWatch(d)
		t.recordRefusal(d, "", d.info, refused)
		t.setReadErr(d, refused)
		return
	}
	t.clearRefusal(d, "")
	t.tryWatch(d)
	d.reread = time.Since(d.mtime).Abs() < clockGrain
	t.round++
	round := t.round
	tooDeep, tooMany, overLimit := d.tooDeep, d.tooMany, d.overLimit
	d.tooDeep, d.tooMany, d.overLimit = false, false, nil
	t.changed = t.changed || d.readErr != nil
	d.readErr = nil
	if err := t.read(d); err != nil {
		t.setReadErr(d, err)
	} else {
		t.updateMissing(d, round)
	}
	t.changed = t.changed || d.tooDeep != tooDeep || d.tooMany != tooMany || !maps.Equal(d.overLimit, overLimit)
	t.track(d)

	for _, sub := range slices.Sorted(maps.Keys(d.dirs)) {
		if c := d.dirs[sub]; c != nil && (how == deep || c.info.ID.IsZero()) {
			t.visit(c, how)
		}
	}
}

// visitFailed handles an error of stat for a directory.
func (t *tree) visitFailed(d *dir, e sock.Entry, err error) {
	if errors.Is(err, errForeign) {
		t.dropContents(d, removed) // the mounted file system hides them
		d.mount, d.tooDeep, d.tooMany, d.overLimit = 0, false, false, nil
		if fileSystemAt(d.path) != "" { // if the type is unknown, the next check visits d again
			d.mount = e.Mount
		}
	}
	if isGone(err) {
		t.drop(d, scanned)
	}
	if t.known(d) {
		t.unwatch(d)
		d.info = sock.Info{}
		t.setReadErr(d, err)
	}
}

// read reads d and updates the facts about all names in it. It records new subdirectories, but does not visit them.
func (t *tree) read(d *dir) error {
	round := t.round
	f, err := openDir(d.path, d.parent == nil, d.mount)
	if err != nil {
		return err
	}
	defer f.Close()
	d.missesEvents = !hasAllEvents(f)
	if d.parent == nil {
		link, err := os.Lstat(d.path)
		// There is no event if the target of a link changes.
		d.missesEvents = d.missesEvents || err != nil || link.Mode()&fs.ModeSymlink != 0
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
				if sub := t.updateEntry(d, n.Name(), scanned); sub != nil {
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

// updateMissing updates the facts about the known names in d that were not found in the given round.
func (t *tree) updateMissing(d *dir, round uint64) {
	for name, e := range d.socks {
		if e.seen != round {
			t.update(d, name, scanned)
		}
	}
	for name, r := range d.refused {
		if r.seen != round && name != "" {
			t.update(d, name, scanned)
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

// stat returns the entry of a directory. Only a root may be a symbolic link.
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

func (t *tree) setReadErr(d *dir, err error) {
	if d.readErr == nil || d.readErr.Error() != err.Error() {
		t.changed = true
	}
	d.readErr = err
	t.track(d)
}

// sortScan sorts the facts of one scan by the birth times of the sockets.
func (t *tree) sortScan(start int) {
	slices.SortStableFunc(t.facts[start:], func(a, b Fact) int {
		return cmp.Or(cmp.Compare(a.Info.ID.Birth, b.Info.ID.Birth), strings.Compare(a.Path, b.Path))
	})
}
