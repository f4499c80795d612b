// Package dirwatch states which Unix sockets exist in a set of directory trees, and says what changes, promptly and truthfully.
//
// It knows paths, identities ([plugin.SocketID]), owners and modes and nothing else: it connects to no socket, and asks whom to trust.
//
// File events are hints, never facts. Each event leads to a look at the path that it names, and what is seen there is what is reported;
// events that were lost, or that the system never sends (bind mounts, a full queue, a file system without them), are made up for by a
// scan. The scan is cheap: it looks at the directories only and reads those that changed. What hinders the watcher for the moment shows
// as a [Condition].
//
// What counts:
//   - A socket in a root or in any directory below it. Names that start with a dot are ignored, files and directories, and so is
//     whatever is no socket. Symbolic links are not followed; only a root may be one.
//   - A file system that is mounted below a root and may not answer, such as one over the network, is not searched.
//   - What Config.Trust refuses is not used, with everything below it, until it is mended.
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
	// Skip are the directories and sockets to leave out, relative to the root and separated by slashes.
	Skip []string
}

// Fact is the present state of one path.
type Fact struct {
	Path string // absolute
	Root int    // index into Config.Roots
	// Present says whether a socket is at Path. A present fact for a path that had another socket (by its ID) means that the other one is
	// gone from there; there is no absent fact in between. A present fact with the ID that is known already means that its mode or owner
	// changed.
	Present bool
	// Info describes the socket: the one that is there, or the one that was.
	Info sock.Info
	// MovedFrom is where this very socket was until now, if it was renamed within the roots. There is no absent fact for that path.
	MovedFrom string
}

// Update is a group of facts that became known together.
type Update struct {
	// Facts in the order in which they became known. Sockets found by one scan are in the order of their birth.
	Facts []Fact
	// Scanned says that the first complete scan is part of this update or came before it: what is not known now is not there.
	Scanned bool
	// Degraded is the complete list of what hinders the watcher now, in the order of the paths. It is shared between updates: read only.
	Degraded []Condition
	// EventsLost reports that file events were lost since the last update, for which a scan makes up.
	EventsLost bool
	// Refused is the complete list of what Config.Judge refuses now, up to a bound, in the order of the paths. It is shared between updates:
	// read only.
	Refused []Refusal
}

// Refusal is a directory, socket or symbolic link that was found and is not used.
type Refusal struct {
	Path string
	// Info describes what is there; for a root that is a symbolic link, the directory that it leads to.
	Info sock.Info
	// Err is the reason of Config.Judge.
	Err   error
	Since time.Time
}

// Config configures a Watcher. Roots and Notify are required; zero means the default elsewhere.
type Config struct {
	Roots []Root
	// Notify receives all updates in order, in Run's goroutine. It is a function, not a channel, because the facts are valid only until it
	// returns. Nothing is watched while it runs, so it should be quick. The first update, which may have no facts, comes when the first scan
	// is complete. Later ones have facts, or something else that changed.
	Notify func(Update)

	// Judge decides what is used. Nil: everything except symbolic links, which never are, and all users are privileged.
	Judge Judge

	MaxDepth   int // directories below a root on the way to a socket; default 16
	MaxSockets int // sockets in one directory; default 10,000
	// MaxUserDirs and MaxDirs bound the directories below the roots that are searched: those of one user, by default 6,000, and all, by
	// default 20,000. The last of these, as many as one user may have, but at most half, are for the privileged.
	MaxUserDirs, MaxDirs int

	// scanInterval is the longest time between two looks at all directories, for what no event told. The default is 4 s. It is eight times
	// as long, but for the roots, while every change below them can be expected to be told: on file systems of this machine, mounts included,
	// with nothing that is refused or beyond the bounds, and no root that is a symbolic link.
	scanInterval time.Duration
	// pollInterval is the time between two looks at what cannot be watched: a root that does not exist, or any directory while the system's
	// watch limit is reached. The default is 1 s.
	pollInterval time.Duration
	// renameHold is how long a socket that was renamed may take to show up elsewhere before it counts as gone. The default is 10 ms.
	renameHold time.Duration
}

// Judge decides what is used.
type Judge interface {
	// Admit returns an error if a directory, socket or symbolic link is not to be used. There are no facts about a socket that is refused, or
	// below a refused directory; what is corrected is found immediately. Admit is called whenever something was found, or its mode or owner
	// changed.
	Admit(path string, info sock.Info) error
	// Privileged reports whether a user is the host's own. What is wrong with the directories of others is a minor [Condition].
	Privileged(uid uint32) bool
}

// everything admits everything.
type everything struct{}

func (everything) Admit(string, sock.Info) error { return nil }
func (everything) Privileged(uint32) bool        { return true }

// Watcher watches directory trees for sockets.
type Watcher struct {
	cfg   Config
	open  func() (*notifier, error)
	check chan struct{}
}

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

// New checks the configuration. It touches no file.
func New(cfg Config) (*Watcher, error) {
	if len(cfg.Roots) == 0 {
		return nil, errors.New("no directory to watch: give at least one root")
	}
	if cfg.Notify == nil {
		return nil, errors.New("nobody to tell: Notify is nil")
	}
	paths := make([]string, len(cfg.Roots))
	for i, r := range cfg.Roots {
		paths[i] = r.Path
	}
	if err := CheckRoots(paths); err != nil {
		return nil, err
	}
	if cfg.Judge == nil {
		cfg.Judge = everything{}
	}
	cfg.MaxDepth = cmp.Or(cfg.MaxDepth, 16)
	cfg.MaxSockets = cmp.Or(cfg.MaxSockets, 10_000)
	cfg.MaxUserDirs = cmp.Or(cfg.MaxUserDirs, 6_000)
	cfg.MaxDirs = cmp.Or(cfg.MaxDirs, 20_000)
	cfg.scanInterval = cmp.Or(cfg.scanInterval, 4*time.Second)
	cfg.pollInterval = cmp.Or(cfg.pollInterval, time.Second)
	cfg.renameHold = cmp.Or(cfg.renameHold, 10*time.Millisecond)
	if min(cfg.MaxDepth, cfg.MaxSockets, cfg.MaxUserDirs, cfg.MaxDirs) < 0 {
		return nil, errors.New("bounds must be positive")
	}
	return &Watcher{cfg: cfg, open: openNotifier, check: make(chan struct{})}, nil
}

// Run watches until ctx is done and then returns nil, with everything closed that it opened. It starts from nothing each time, so a
// second Run after the first one has returned states all facts anew.
func (w *Watcher) Run(ctx context.Context) error {
	t := newTree(w.cfg, w.open)
	defer t.closeNotifier()
	defer t.closeMounts()

	t.mounts, _ = openMounts() // without them more is scanned
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
		var doubt <-chan struct{}
		if t.notifier != nil {
			events, doubt = t.notifier.events, t.notifier.doubt
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
		case <-doubt:
			t.doubt()
		case _, ok := <-mounted:
			if !ok {
				t.closeMounts() // the next safety scan tries again
				break
			}
			t.safetyScan()
		case <-timer.C:
			t.drain(events) // what is held may be in them
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

// Check returns nil as soon as Run's loop answers, and an error when ctx ends before that: a file system may hang.
func (w *Watcher) Check(ctx context.Context) error {
	select {
	case w.check <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the watch of the plugin directories does not answer: %w", ctx.Err())
	}
}

// within reports whether path is dir or below it. Both are absolute and clean.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
}
