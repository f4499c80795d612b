package dirwatch

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

// lossGap is the least time between two scans that make up for lost events, so that a storm of events does not become one of scans.
const lossGap = 500 * time.Millisecond

// errNoEvents is why there is no source of events when nothing else is to blame.
var errNoEvents = errors.New("the source of events has ended")

// errMountedTwice is why a directory that is in the tree under two paths has a watch at one of them only.
var errMountedTwice = errors.New("the directory is in the watched tree under another path too")

func (t *tree) openNotifier() {
	// gofail: var dirwatchNotifier string
	// t.notifierErr, t.changed = errors.New(dirwatchNotifier), true
	// return
	n, err := t.open()
	t.notifier, t.notifierErr, t.changed = n, err, true
}

func (t *tree) closeNotifier() {
	if t.notifier == nil {
		return
	}
	_ = t.notifier.close() // nothing was written, so nothing can be lost
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

// tryWatch watches a directory if it can be watched, and reports whether it is watched now.
func (t *tree) tryWatch(d *dir) bool {
	if d.watched || t.notifier == nil {
		return d.watched
	}
	err := t.takeOver(d)
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

// takeOver gives up the watch that another record has on the inode of d. fsnotify would keep that record's path for its events.
func (t *tree) takeOver(d *dir) error {
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
	_ = t.notifier.remove(d.path) // fails if the watch has ended by itself, which is as good
	d.watched = false
	if t.watched[d.info.ID] == d {
		delete(t.watched, d.info.ID)
	}
	t.track(d)
}

// track notes whether a directory has to be polled, and whether events tell all about it.
func (t *tree) track(d *dir) {
	delete(t.untold, d)
	if t.known(d) && (d.silent || d.unsure || d.tooDeep || d.tooMany || len(d.leftOut) > 0) {
		t.untold[d] = struct{}{}
	}
	toldByTable := errors.Is(d.readErr, errForeign) && d.mount != 0 && t.mounts != nil // of its end
	if d.watched && d.readErr == nil || toldByTable || !t.known(d) {
		delete(t.polled, d)
		return
	}
	if len(t.polled) == 0 {
		t.pollAt = time.Now().Add(t.cfg.pollInterval)
	}
	t.polled[d] = struct{}{}
}

// doubt handles that events were lost: everything is scanned, at once or as soon as the last such scan is long enough ago.
func (t *tree) doubt() {
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

// resync starts over with a new source of events, whose queue is empty, and scans everything.
func (t *tree) resync() {
	t.closeNotifier()
	t.openNotifier()
	t.scanAll()
	if !t.lostAt.IsZero() {
		t.lostAt, t.changed = time.Time{}, true
	}
	t.syncAt = time.Now().Add(lossGap)
}

// deadline returns when something is due: the end of a hold, a scan, or what retry does.
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

// retry scans after a loss if that is due, and looks at what is polled if that is due.
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
	t.pollAt = time.Now().Add(t.cfg.pollInterval)
}
