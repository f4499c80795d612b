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
	cfg  Config
	open func() (*notifier, error)

	notifier    *notifier // nil while the system gives none
	notifierErr error
	mounts      *mounts // nil while the system does not tell of them

	roots []*dir          // one for each root, forever
	dirs  map[string]*dir // every known directory by its path, the roots included
	crowd *quota.Pool     // of those that are no roots
	// freed is how many directories were given back, and sought how many had been when the last safety scan began: if they differ, there may
	// be room for what was left out.
	freed, sought int
	// watched finds the directory that holds the watch on an inode. inotify has one watch per inode, and reports its events under the name
	// that was given first.
	watched map[plugin.SocketID]*dir
	polled  map[*dir]struct{} // what no event can tell about: looked at in every poll interval
	pollAt  time.Time         // the next such look
	untold  map[*dir]struct{} // what events may not tell all about: looked at in every scan interval

	scannedAt time.Time     // when the last safety scan was
	scanAfter time.Duration // the time from that to the next one, unless the tree is settled
	rootsAt   time.Time     // when it is due to see whether the roots are still those that they were

	socks map[string]*entry          // every socket by its path, including those that are held
	byID  map[plugin.SocketID]*entry // one of the entries with that ID
	holds []heldEntry                // in the order of their moments; what was resolved stays until it is its turn

	round  uint64    // number of the last reading of a directory
	lost   bool      // events were lost since the last update
	lostAt time.Time // when events were lost that no scan has made up for yet
	syncAt time.Time // when it is due

	refused    []Refusal   // as it was told last
	refusals   *quota.Pool // how many there are in all directories
	newRefused bool        // refused is out of date

	facts    []Fact
	scanned  bool // the roots have been scanned once
	told     bool // an update with scanned was sent
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
	refused map[string]*refusal // what lies in it; of a root also itself, under the empty name

	owner   uint32         // whose it is, as far as it is known
	counted bool           // in tree.crowd, as one of owner's
	leftOut map[uint32]int // how many directories in it are beyond the bounds, by their owner

	info   sock.Info // of the directory that was read last
	mtime  time.Time
	mount  uint64 // the end of a mount ends the watch, of which no event tells
	silent bool   // events may not tell of every change to it, although it is watched
	unsure bool   // read so soon after its last change that the next change might not show in mtime
	seen   uint64 // round in which the parent's reading met it

	watched  bool
	watchErr error // why it is not watched
	readErr  error // why its contents are not known
	tooDeep  bool  // has directories below the bound
	tooMany  bool  // has sockets beyond the bound
}

// entry is a socket that was stated to be present.
type entry struct {
	path string
	name string
	dir  *dir
	info sock.Info
	seen uint64
	held time.Time // if not zero: nothing or another socket is at path, and until this moment it may turn out to be a rename
}

func newTree(cfg Config, open func() (*notifier, error)) *tree {
	t := &tree{
		cfg:      cfg,
		open:     open,
		dirs:     map[string]*dir{},
		refusals: quota.New(quota.Reserved(maxUserRefused, maxRefused), cfg.Judge.Privileged),
		crowd:    quota.New(quota.Reserved(cfg.MaxUserDirs, cfg.MaxDirs), cfg.Judge.Privileged),
		watched:  map[plugin.SocketID]*dir{},
		polled:   map[*dir]struct{}{},
		untold:   map[*dir]struct{}{},
		socks:    map[string]*entry{},
		byID:     map[plugin.SocketID]*entry{},
	}
	for i, r := range cfg.Roots {
		d := &dir{path: r.Path, root: i, dirs: map[string]*dir{}, socks: map[string]*entry{}}
		t.roots = append(t.roots, d)
		t.dirs[d.path] = d
	}
	return t
}

func (t *tree) known(d *dir) bool { return t.dirs[d.path] == d }

// addDir makes the record of a subdirectory of a user, or returns nil if it is beyond a bound.
func (t *tree) addDir(parent *dir, name string, uid uint32) *dir {
	if parent.depth >= t.cfg.MaxDepth {
		t.exceed(parent, &parent.tooDeep)
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
	if !t.count(d, uid) {
		t.leaveOut(parent, uid)
		return nil
	}
	parent.dirs[name] = d
	t.dirs[d.path] = d
	return d
}

// drop forgets a directory that is gone, with everything below it. A root keeps its record.
func (t *tree) drop(d *dir, why cause) {
	t.empty(d, why)
	t.pardon(d, "")
	t.unwatch(d)
	t.uncount(d)
	delete(t.polled, d)
	delete(t.untold, d)
	t.changed = t.changed || d.readErr != nil || d.watchErr != nil || d.tooDeep || d.tooMany || len(d.leftOut) > 0
	d.leftOut = nil
	if d.parent != nil {
		delete(d.parent.dirs, d.name)
		delete(t.dirs, d.path)
	}
}

func (t *tree) empty(d *dir, why cause) {
	for _, sub := range d.dirs {
		t.drop(sub, why)
	}
	for _, e := range d.socks {
		t.vanish(e, why)
	}
	for name := range d.refused {
		if name != "" {
			t.pardon(d, name)
		}
	}
}

// skip reports whether a name in d is to be ignored.
func (t *tree) skip(d *dir, name string) bool {
	return name == "" || name[0] == '.' || slices.Contains(t.cfg.Roots[d.root].Skip, relTo(d, name))
}

// exceed sets a flag of a directory that says that there is more in it than the bounds allow.
func (t *tree) exceed(d *dir, flag *bool) {
	if !*flag {
		*flag, t.changed = true, true
		t.track(d)
	}
}

func (t *tree) flush() {
	moved := t.changed && t.refreshConditions()
	t.changed = false
	judged := t.refreshRefused()
	if len(t.facts) == 0 && !moved && !judged && !t.lost && t.told {
		return
	}
	t.told = t.scanned
	t.cfg.Notify(Update{Facts: t.facts, Scanned: t.scanned, Degraded: t.degraded, EventsLost: t.lost, Refused: t.refused})
	t.lost = false
	if clear(t.facts); cap(t.facts) <= 2*drainLimit {
		t.facts = t.facts[:0]
	} else { // of a scan
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
