// Package dirwatch finds the Unix sockets in a set of directory trees and reports every change.
//
// It reports paths, identities ([plugin.SocketID]), owners and modes. It does not connect to sockets.
//
// The watcher uses file events only as hints: after each event, it checks the path and reports the state of the file. Regular scans find
// changes that caused no event, because of a bind mount, a full event queue, or a file system without events. A scan is cheap, because it
// reads only directories that have changed. A [Condition] reports a problem of the watcher.
//
// The rules are:
//   - A socket counts if it is in a root or any directory below it. Names that start with a dot are ignored. Symbolic links are not
//     followed; only a root may be one.
//   - Network file systems, and others that may not answer, are not searched if they are mounted below a root.
//   - Files and directories that Watcher.Judge refuses are not used, nor is anything below them, until the problem is fixed.
//   - The same tree gives the same facts whenever the watcher starts.
package dirwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Root is a directory tree to watch.
type Root struct {
	// Path of the directory, absolute and clean. It need not exist yet. Roots must not contain each other.
	Path string
	// Skip are paths of directories and sockets to ignore, relative to the root and separated by slashes.
	Skip []string
}

// Fact is the current state of one path.
type Fact struct {
	Path string // absolute
	Root int    // index of its root
	// Present is true if a socket is at Path. If another socket (by its ID) was there before, it is gone, without an absent fact in
	// between. If a present fact has the same ID as before, the mode or owner of the socket has changed.
	Present bool
	// Info describes the current socket or, if Present is false, the last one.
	Info sock.Info
	// MovedFrom is the previous path of the socket if it was renamed within the roots. There is no absent fact for that path.
	MovedFrom string
}

// Update is a group of facts that became known together.
type Update struct {
	// Facts are in the order of the changes. Sockets found by one scan are sorted by birth time.
	Facts []Fact
	// Scanned is true if the first scan is complete: a socket without a fact does not exist.
	Scanned bool
	// Degraded has all current conditions, sorted by path. It is shared between updates and must not be modified.
	Degraded []Condition
	// EventsLost is true if file events were lost since the last update. A scan finds the changes.
	EventsLost bool
	// Refused has all current refusals, up to a limit, sorted by path. It is shared between updates and must not be modified.
	Refused []Refusal
}

// Refusal is a directory, socket or symbolic link that was found and is not used.
type Refusal struct {
	Path string
	// Info describes the file; for a root that is a symbolic link, its target.
	Info sock.Info
	// Err is the error of Watcher.Judge.
	Err   error
	Since time.Time
}

// Watcher watches directory trees for sockets. Set its exported fields before [Watcher.Run]; zero means the default.
type Watcher struct {
	roots  []Root
	notify func(Update)

	// Judge decides which files are used; nil accepts all, and treats all users as privileged. Symbolic links below a root are never used.
	Judge Judge

	MaxDepth   int // the maximum number of directories between a root and a socket; default 16
	MaxSockets int // the maximum number of sockets in one directory; default 10,000
	// MaxUserDirs and MaxDirs limit the directories below the roots that are searched, for one user (default 6,000) and in total (default
	// 20,000). As many as one user may have, but at most half of the total, are reserved for privileged users.
	MaxUserDirs, MaxDirs int

	// scanInterval is the maximum time between two scans for changes without events; the default is 4 s. It is multiplied by settledFactor,
	// except for the roots, while events report all changes: all file systems are local, no root is a symbolic link, and nothing is refused
	// or over a limit.
	scanInterval time.Duration
	// pollInterval is the time between two checks of directories that cannot be watched: a missing root, or any directory while no inotify
	// watches are available. The default is 1 s.
	pollInterval time.Duration
	// renameHold is how long a renamed socket counts as present until it is found at another path. The default is 10 ms.
	renameHold time.Duration

	open  func() (*notifier, error)
	check chan struct{}
}

// Judge decides which files are used.
type Judge interface {
	// Admit returns an error if a directory, socket or symbolic link must not be used. There are no facts about refused sockets, nor about
	// sockets below refused directories. Admit is called for each file that is found, and again after its mode or owner changed.
	Admit(path string, info sock.Info) error
	// Privileged reports whether a user is privileged. Problems with directories of other users are minor conditions.
	Privileged(uid uint32) bool
}

// admitAll admits all files, and treats all users as privileged.
type admitAll struct{}

func (admitAll) Admit(string, sock.Info) error { return nil }
func (admitAll) Privileged(uint32) bool        { return true }

// CheckRoots returns an error if a path is not absolute and clean, or contains another.
func CheckRoots(paths []string) error {
	for i, path := range paths {
		if !filepath.IsAbs(path) || path != filepath.Clean(path) {
			return fmt.Errorf("the path of a root is not absolute and clean: %q", path)
		}
		for _, other := range paths[:i] {
			if within(path, other) || within(other, path) {
				return fmt.Errorf("plugin directories %s and %s contain each other: name only the outer one", other, path)
			}
		}
	}
	return nil
}

// New returns a watcher of the roots, or an error if they are invalid. It does not access files.
//
// Run calls notify with all updates, in order. notify should not block, because the watcher waits for it. It is not a channel, because the
// facts are valid only until it returns. The first update follows the first scan and may have no facts. Each later update contains a
// change.
func New(notify func(Update), roots ...Root) (*Watcher, error) {
	if len(roots) == 0 {
		return nil, errors.New("no directory to watch: give at least one root")
	}
	if notify == nil {
		return nil, errors.New("the function notify is nil")
	}
	paths := make([]string, len(roots))
	for i, r := range roots {
		paths[i] = r.Path
	}
	if err := CheckRoots(paths); err != nil {
		return nil, err
	}
	return &Watcher{roots: roots, notify: notify, open: openNotifier, check: make(chan struct{})}, nil
}

func (w *Watcher) setDefaults() {
	if w.Judge == nil {
		w.Judge = admitAll{}
	}
	w.MaxDepth = cmp.Or(w.MaxDepth, 16)
	w.MaxSockets = cmp.Or(w.MaxSockets, 10_000)
	w.MaxUserDirs = cmp.Or(w.MaxUserDirs, 6_000)
	w.MaxDirs = cmp.Or(w.MaxDirs, 20_000)
	w.scanInterval = cmp.Or(w.scanInterval, 4*time.Second)
	w.pollInterval = cmp.Or(w.pollInterval, time.Second)
	w.renameHold = cmp.Or(w.renameHold, 10*time.Millisecond)
}

// Run watches until ctx is done and then returns nil. It returns an error only if a limit is negative. It may be called again after it has
// returned, and then reports all facts again.
func (w *Watcher) Run(ctx context.Context) error {
	if min(w.MaxDepth, w.MaxSockets, w.MaxUserDirs, w.MaxDirs) < 0 {
		return errors.New("bounds must be positive")
	}
	t := newTree(w)
	defer t.closeNotifier()
	defer t.closeMounts()

	t.mounts, _ = openMounts() // after an error, scans are more frequent
	t.openNotifier()
	t.scanAll()
	t.scanned = true
	t.planScan()
	t.flush()

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(t.deadline()))
		var events <-chan event
		var lost <-chan struct{}
		if t.notifier != nil {
			events, lost = t.notifier.events, t.notifier.lost
		}
		var mounted <-chan struct{}
		if t.mounts != nil {
			mounted = t.mounts.changed
		}
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-events:
			if !ok {
				t.closeNotifier()
				break
			}
			t.handle(ev)
			t.drain(events)
		case <-w.check:
		case <-lost:
			t.handleLost()
		case _, ok := <-mounted:
			if !ok {
				t.closeMounts() // the next safety scan tries again
				break
			}
			t.safetyScan()
		case <-timer.C:
			t.drain(events) // the events may have the new paths of held sockets
			t.retry()
			if now := time.Now(); !t.scanDeadline().After(now) {
				t.safetyScan()
			} else if !t.rootsAt.After(now) {
				t.checkRoots()
			}
		}
		t.expireHolds(time.Now())
		t.flush()
	}
}

// Check blocks until Run's loop answers, or ctx is done. It detects a file system that hangs.
func (w *Watcher) Check(ctx context.Context) error {
	select {
	case w.check <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the watch of the plugin directories does not answer: %w", ctx.Err())
	}
}

// within reports whether path is dir or is below dir. Both are absolute and clean.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
}
