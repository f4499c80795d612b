package dirwatch

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/internal/quota"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// tree is the state of one Run. Only Run's goroutine touches it.
type tree struct {
	w *Watcher

	notifier    *notifier // nil if file events are not available
	notifierErr error
	mounts      *mounts // nil if changes of mounts are not available

	roots    []*dir          // constant
	dirs     map[string]*dir // all known directories by path, including roots
	dirQuota *quota.Pool     // counts the directories below the roots
	// freed counts directories that released their quota; freedAtScan is its value at the start of the last safety scan. If they differ,
	// there may be room for directories over the limits.
	freed, freedAtScan int
	// watched are the watched directories by inode. inotify has one watch for each inode, and reports its events under the first path.
	watched    map[plugin.SocketID]*dir
	polled     map[*dir]struct{} // directories without events, which are checked once per poll interval
	pollAt     time.Time         // when to check polled
	incomplete map[*dir]struct{} // directories with incomplete events, which are checked once per scan interval

	scannedAt time.Time     // when the last safety scan ended
	scanAfter time.Duration // from scannedAt to the next safety scan, unless the tree is settled
	rootsAt   time.Time     // when to call checkRoots

	socks map[string]*entry          // all sockets by path, including those that are held
	byID  map[plugin.SocketID]*entry // one of the entries with that ID
	holds []heldEntry                // in the order of their deadlines; resolved ones are removed when they are first

	round  uint64    // number of the last reading of a directory
	lost   bool      // events were lost since the last update
	lostAt time.Time // when events were first lost after the last resync; zero if none were
	syncAt time.Time // the earliest time of the next resync

	refused        []Refusal   // of the last update
	refusals       *quota.Pool // counts the refusals of all directories
	refusedChanged bool        // refused is out of date

	facts    []Fact
	scanned  bool // the roots have been scanned once
	notified bool // an update with Scanned has been sent
	degraded []Condition
	changed  bool // degraded may be out of date
}

// dir is a directory that is searched, or a root that may be missing.
type dir struct {
	path   string
	name   string
	rel    string // relative to the root, separated by slashes; empty for a root
	root   int
	depth  int
	parent *dir // nil for a root

	dirs    map[string]*dir
	socks   map[string]*entry
	refused map[string]*refusal // by name; the empty name is the root itself

	owner     uint32         // the last known owner
	counted   bool           // in tree.dirQuota, for owner
	overLimit map[uint32]int // how many directories in it exceed the limits, by owner

	info         sock.Info // when it was last read
	mtime        time.Time
	mount        uint64 // if it changes, the watch has ended without an event
	missesEvents bool   // some changes cause no events, although it is watched
	reread       bool   // it must be read again, because of clockGrain or a limit
	seen         uint64 // the round in which it was last found in its parent

	watched  bool
	watchErr error // the reason why it is not watched
	readErr  error // the reason why it could not be read
	tooDeep  bool  // has directories below MaxDepth
	tooMany  bool  // has more than MaxSockets sockets
}

// entry is a socket that was reported as present.
type entry struct {
	path string
	name string
	dir  *dir
	info sock.Info
	seen uint64
	held time.Time // if not zero, the socket is not at path; until this time it may be found elsewhere
}

func newTree(w *Watcher) *tree {
	w.setDefaults()
	t := &tree{
		w:          w,
		dirs:       map[string]*dir{},
		refusals:   quota.New(quota.Reserved(maxUserRefused, maxRefused), w.Judge.Privileged),
		dirQuota:   quota.New(quota.Reserved(w.MaxUserDirs, w.MaxDirs), w.Judge.Privileged),
		watched:    map[plugin.SocketID]*dir{},
		polled:     map[*dir]struct{}{},
		incomplete: map[*dir]struct{}{},
		socks:      map[string]*entry{},
		byID:       map[plugin.SocketID]*entry{},
	}
	for i, r := range w.roots {
		d := &dir{path: r.Path, root: i, dirs: map[string]*dir{}, socks: map[string]*entry{}}
		t.roots = append(t.roots, d)
		t.dirs[d.path] = d
	}
	return t
}

func (t *tree) known(d *dir) bool { return t.dirs[d.path] == d }

// addDir records a subdirectory of a user. It returns nil if the directory exceeds a limit.
func (t *tree) addDir(parent *dir, name string, uid uint32) *dir {
	if parent.depth >= t.w.MaxDepth {
		t.setLimitFlag(parent, &parent.tooDeep)
		return nil
	}
	d := &dir{
		path:   join(parent.path, name),
		name:   name,
		rel:    relTo(parent, name),
		root:   parent.root,
		depth:  parent.depth + 1,
		parent: parent,
		dirs:   map[string]*dir{},
		socks:  map[string]*entry{},
	}
	if !t.takeQuota(d, uid) {
		t.addOverLimit(parent, uid)
		return nil
	}
	parent.dirs[name] = d
	t.dirs[d.path] = d
	return d
}

// drop removes a directory that is gone, and everything below it. A root stays in roots and dirs.
func (t *tree) drop(d *dir, why cause) {
	t.dropContents(d, why)
	t.clearRefusal(d, "")
	t.unwatch(d)
	t.releaseQuota(d)
	delete(t.polled, d)
	delete(t.incomplete, d)
	t.changed = t.changed || d.readErr != nil || d.watchErr != nil || d.tooDeep || d.tooMany || len(d.overLimit) > 0
	d.overLimit = nil
	if d.parent != nil {
		delete(d.parent.dirs, d.name)
		delete(t.dirs, d.path)
	}
}

func (t *tree) dropContents(d *dir, why cause) {
	for _, sub := range d.dirs {
		t.drop(sub, why)
	}
	for _, e := range d.socks {
		t.removeSocket(e, why)
	}
	for name := range d.refused {
		if name != "" {
			t.clearRefusal(d, name)
		}
	}
}

// skip reports whether a name in d must be ignored.
func (t *tree) skip(d *dir, name string) bool {
	return name == "" || name[0] == '.' || slices.Contains(t.w.roots[d.root].Skip, relTo(d, name))
}

// setLimitFlag sets tooDeep or tooMany of a directory.
func (t *tree) setLimitFlag(d *dir, flag *bool) {
	if !*flag {
		*flag, t.changed = true, true
		t.track(d)
	}
}

func (t *tree) flush() {
	moved := t.changed && t.refreshConditions()
	t.changed = false
	judged := t.refreshRefused()
	if len(t.facts) == 0 && !moved && !judged && !t.lost && t.notified {
		return
	}
	t.notified = t.scanned
	t.w.notify(Update{Facts: t.facts, Scanned: t.scanned, Degraded: t.degraded, EventsLost: t.lost, Refused: t.refused})
	t.lost = false
	if clear(t.facts); cap(t.facts) <= 2*drainLimit {
		t.facts = t.facts[:0]
	} else { // do not keep the memory of a large scan
		t.facts = nil
	}
}

func join(dir, name string) string {
	if dir[len(dir)-1] == filepath.Separator {
		return dir + name
	}
	return dir + string(filepath.Separator) + name
}

// relTo returns the path of a name in d relative to d's root.
func relTo(d *dir, name string) string {
	if d.rel == "" {
		return name
	}
	return d.rel + "/" + name
}
