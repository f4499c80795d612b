package dirwatch

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

// lossGap is the minimum time between two scans after lost events, to limit the number of scans.
const lossGap = 500 * time.Millisecond

// errNoEvents means that the source of events has ended without an error.
var errNoEvents = errors.New("the source of events has ended")

// errMountedTwice means that a directory is in the tree under two paths. Only one of them is watched.
var errMountedTwice = errors.New("the directory is in the watched tree under another path too")

func (t *tree) openNotifier() {
	// gofail: var dirwatchNotifier string
	// t.notifierErr, t.changed = errors.New(dirwatchNotifier), true
	// return
	n, err := t.w.open()
	t.notifier, t.notifierErr, t.changed = n, err, true
}

func (t *tree) closeNotifier() {
	if t.notifier == nil {
		return
	}
	_ = t.notifier.close()
	t.notifier, t.notifierErr, t.changed = nil, errNoEvents, true
	clear(t.watched)
	for _, d := range t.dirs {
		d.watched, d.watchErr = false, nil
		t.track(d)
	}
}

func (t *tree) closeMounts() {
	if t.mounts != nil {
		t.mounts.close()
		t.mounts = nil
	}
}

// tryWatch tries to watch a directory that is not watched, and reports whether it is watched now.
func (t *tree) tryWatch(d *dir) bool {
	if d.watched || t.notifier == nil {
		return d.watched
	}
	err := t.releaseOtherWatch(d)
	// gofail: var dirwatchAdd string
	// err = errors.New(dirwatchAdd)
	if err == nil {
		err = t.notifier.add(d.path)
	}
	if (err == nil) != (d.watchErr == nil) {
		t.changed = true
	}
	d.watchErr = err
	if err == nil {
		d.watched = true
		t.watched[d.info.ID] = d
	}
	t.track(d)
	return d.watched
}

// releaseOtherWatch removes a watch on the inode of d that was added under another path, because fsnotify reports events under the path of
// the first watch.
func (t *tree) releaseOtherWatch(d *dir) error {
	other := t.watched[d.info.ID]
	if other == nil || other == d {
		return nil
	}
	if e, err := t.stat(other); err == nil && e.ID == d.info.ID {
		return errMountedTwice
	}
	t.unwatch(other)
	return nil
}

func (t *tree) unwatch(d *dir) {
	if !d.watched {
		return
	}
	_ = t.notifier.remove(d.path) // it fails if the watch has ended by itself
	d.watched = false
	if t.watched[d.info.ID] == d {
		delete(t.watched, d.info.ID)
	}
	t.track(d)
}

// track updates whether d is in polled and in incomplete.
func (t *tree) track(d *dir) {
	delete(t.incomplete, d)
	if t.known(d) && (d.missesEvents || d.reread || d.tooDeep || d.tooMany || len(d.overLimit) > 0) {
		t.incomplete[d] = struct{}{}
	}
	mountReported := errors.Is(d.readErr, errForeign) && d.mount != 0 && t.mounts != nil // t.mounts reports an unmount
	if d.watched && d.readErr == nil || mountReported || !t.known(d) {
		delete(t.polled, d)
		return
	}
	if len(t.polled) == 0 {
		t.pollAt = time.Now().Add(t.w.pollInterval)
	}
	t.polled[d] = struct{}{}
}

// handleLost scans everything after lost events, either immediately or lossGap after the last such scan.
func (t *tree) handleLost() {
	if !t.lostAt.IsZero() {
		return
	}
	now := time.Now()
	t.lost, t.lostAt, t.changed = true, now, true
	t.flush()
	if t.syncAt.Before(now) {
		t.syncAt = now
		t.resync()
	}
}

// resync opens a new source of events, with an empty queue, and scans everything.
func (t *tree) resync() {
	t.closeNotifier()
	t.openNotifier()
	t.scanAll()
	if !t.lostAt.IsZero() {
		t.lostAt, t.changed = time.Time{}, true
	}
	t.syncAt = time.Now().Add(lossGap)
}

// deadline returns the time of the next hold that ends, scan, check of the roots, resync or poll.
func (t *tree) deadline() time.Time {
	at := t.scanDeadline()
	sooner := func(other time.Time) {
		if !other.IsZero() && other.Before(at) {
			at = other
		}
	}
	sooner(t.rootsAt)
	sooner(t.holdDeadline())
	if !t.lostAt.IsZero() {
		sooner(t.syncAt)
	}
	if len(t.polled) > 0 {
		sooner(t.pollAt)
	}
	return at
}

// retry does the resync and the poll, each if it is due.
func (t *tree) retry() {
	now := time.Now()
	if !t.lostAt.IsZero() && !t.syncAt.After(now) {
		t.resync()
	}
	if len(t.polled) == 0 || t.pollAt.After(now) {
		return
	}
	start := len(t.facts)
	for _, d := range slices.SortedFunc(maps.Keys(t.polled), func(a, b *dir) int { return strings.Compare(a.path, b.path) }) {
		if t.known(d) {
			t.inspect(d)
		}
	}
	t.sortScan(start)
	t.pollAt = time.Now().Add(t.w.pollInterval)
}
