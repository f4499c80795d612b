package dirwatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/discover/share"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// answerTime is how long a mounted file system may take for one call until a condition says that it does not answer.
	answerTime = 5 * time.Second
	// stopTime is how long Run waits at its end for the watchers of mounted file systems. One whose call does not return ends with that call.
	stopTime = time.Second
	// maxUserMounted and maxMounted bound how many mounts are watched: below directories of one user, and in all. Each takes a goroutine,
	// an inotify instance and a few descriptors.
	maxUserMounted, maxMounted = 16, 48
)

// errMountPoint is why a directory is not searched here: a file system is mounted there that has a watcher of its own.
var errMountPoint = errors.New("another file system is mounted there")

// errRemounted is why a directory is not read: something was mounted there, or unmounted, since it was looked at.
var errRemounted = errors.New("what is mounted there has changed")

// mounted is a file system that is mounted below a root and may not answer, such as one over the network. A call to the system for a path
// in it may take forever, so a Watcher of its own makes all of them.
type mounted struct {
	dir        *dir // in which the mount point is
	name, path string
	mount      uint64
	kind       string   // of file system
	watcher    *Watcher // nil: it is beyond the bound and not searched
	stop       context.CancelFunc
	ended      chan struct{}

	socks    map[string]sock.Info
	degraded []Condition
	refused  []Refusal
	scanned  bool

	progress uint64    // of the watcher, when it was asked last
	heard    time.Time // when it had made progress, or was idle
	silent   bool      // it has not for answerTime
}

// news is an update of the watcher of what is mounted.
type news struct {
	m *mounted
	Update
}

// pools are what all watchers below the roots share.
type pools struct{ dirs, refusals, mounts pool }

func newPools(cfg Config) *pools {
	return &pools{
		dirs:     pool{of: share.New(cfg.MaxUserDirs, cfg.MaxDirs, cfg.Privileged)},
		refusals: pool{of: share.New(maxUserRefused, maxRefused, cfg.Privileged)},
		mounts:   pool{of: share.New(maxUserMounted, maxMounted, cfg.Privileged)},
	}
}

// pool is a [share.Pool] that is safe for concurrent use.
type pool struct {
	mu sync.Mutex
	of *share.Pool
}

func (p *pool) Take(uid uint32, n int) (ok, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of.Take(uid, n)
}

func (p *pool) Give(uid uint32, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of.Give(uid, n)
}

func (p *pool) Sum() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of.Sum()
}

// lookUp describes what is at a path in d. It never waits for what is mounted there.
func (t *tree) lookUp(d *dir, path string) (sock.Entry, error) {
	e, err := sock.StatEntry(path, true)
	if err == nil && d.silent && !e.IsMountPoint {
		e, err = sock.StatEntry(path, false) // what the kernel knows of another machine's file may be out of date
	}
	t.progress.Add(1)
	return e, err
}

// isForeign reports whether a file system is mounted at a path that has, or is to have, a watcher of its own.
func (t *tree) isForeign(path string, e sock.Entry) bool {
	if !e.IsMountPoint || !e.Mode.IsDir() {
		return false
	}
	if m := t.mounted[path]; m != nil && m.mount == e.Mount {
		return true
	}
	if d := t.dirs[path]; d != nil && d.mount == e.Mount {
		return false
	}
	return !localTypes[fileSystemAt(path)]
}

// localTypes are the file systems that answer without another machine or process.
var localTypes = map[string]bool{
	"ext2": true, "ext3": true, "ext4": true, "xfs": true, "btrfs": true, "f2fs": true, "tmpfs": true, "ramfs": true, "overlay": true,
	"devtmpfs": true, "squashfs": true, "erofs": true, "proc": true, "sysfs": true, "cgroup2": true,
}

// enter starts a watcher for the file system that is mounted under a name in parent, unless it has one.
func (t *tree) enter(parent *dir, name string, e sock.Entry) {
	path := join(parent.path, name)
	m := t.mounted[path]
	if m != nil && m.mount == e.Mount && m.watcher != nil {
		return
	}
	t.leave(path)
	if s := t.socks[path]; s != nil {
		t.vanish(s, removed)
	}
	if d := t.dirs[path]; d != nil {
		t.drop(d, removed)
	}
	t.pardon(parent, name) // the directory that was refused is hidden
	if parent.depth >= t.cfg.MaxDepth {
		t.exceed(parent, &parent.tooDeep)
		return
	}
	m = &mounted{dir: parent, name: name, path: path, mount: e.Mount, kind: fileSystemAt(path), socks: map[string]sock.Info{}}
	t.mounted[path], t.changed = m, true
	if ok, _ := t.cfg.pools.mounts.Take(parent.owner, 1); ok {
		t.follow(m)
	}
}

// follow starts the watcher of what is mounted.
func (t *tree) follow(m *mounted) {
	ctx, stop := context.WithCancel(context.Background())
	rel := relTo(m.dir, m.name)
	root := Root{Path: m.path, mount: m.mount}
	if skip := t.cfg.Roots[m.dir.root].Skip; skip != nil {
		root.Skip = func(below string) bool { return skip(rel + "/" + below) }
	}
	cfg := t.cfg
	cfg.Roots = []Root{root}
	cfg.MaxDepth = t.cfg.MaxDepth - m.dir.depth - 1
	cfg.Notify = func(u Update) {
		u.Facts = slices.Clone(u.Facts)
		select {
		case t.news <- news{m, u}:
		case <-ctx.Done():
		}
	}
	m.watcher = &Watcher{cfg: cfg, open: t.open, check: make(chan struct{})}
	m.stop, m.ended, m.heard = stop, make(chan struct{}), time.Now()
	t.askAt = m.heard.Add(t.cfg.pollInterval)
	pools, owner := t.cfg.pools, m.dir.owner
	go func() {
		defer close(m.ended)
		defer pools.mounts.Give(owner, 1)
		_ = m.watcher.Run(ctx) // returns nil
	}()
}

// take adds to the watcher's facts those that the watcher of a mount reports.
func (t *tree) take(n news) {
	m := n.m
	if t.mounted[m.path] != m {
		return // it was left before the update arrived
	}
	for _, f := range n.Facts {
		f.Root = m.dir.root
		delete(m.socks, f.MovedFrom)
		if f.Present {
			m.socks[f.Path] = f.Info
		} else {
			delete(m.socks, f.Path)
		}
		t.facts = append(t.facts, f)
	}
	_, own := t.owned(m.dir)
	m.degraded = nil
	for _, c := range n.Degraded {
		c.Minor = c.Minor || !own // the owner of a directory may mount something there
		if !slices.ContainsFunc(n.Refused, func(r Refusal) bool { return r.Path == c.Path && r.Err.Error() == c.Key }) {
			m.degraded = append(m.degraded, c)
		}
	}
	m.refused, m.scanned = n.Refused, m.scanned || n.Scanned
	m.heard, m.silent = time.Now(), false
	t.changed, t.newRefused = true, true
}

// leave forgets what was mounted at a path, with everything below it.
func (t *tree) leave(path string) {
	m := t.mounted[path]
	if m == nil {
		return
	}
	delete(t.mounted, path)
	t.changed, t.newRefused, t.freed = true, true, true
	if m.watcher != nil {
		m.stop()
	}
	for _, sub := range slices.Sorted(maps.Keys(m.socks)) {
		t.facts = append(t.facts, Fact{Path: sub, Root: m.dir.root, Info: m.socks[sub]})
	}
}

// askMounted finds out which of what is mounted answers.
func (t *tree) askMounted(now time.Time) {
	t.askAt = now.Add(t.cfg.pollInterval)
	for _, m := range t.mounted {
		if m.watcher == nil {
			continue
		}
		idle := false
		select {
		case m.watcher.check <- struct{}{}:
			idle = true
		default:
		}
		if progress := m.watcher.progress.Load(); idle || progress != m.progress {
			m.progress, m.heard = progress, now
		}
		if silent := now.Sub(m.heard) >= answerTime; silent != m.silent {
			m.silent, t.changed = silent, true
		}
	}
}

// awaitsMounted reports whether something is mounted that answers and was not scanned yet.
func (t *tree) awaitsMounted() bool {
	for _, m := range t.mounted {
		if m.watcher != nil && !m.scanned && !m.silent {
			return true
		}
	}
	return false
}

// conditionsOfMounted returns the conditions of what is mounted.
func (t *tree) conditionsOfMounted() (list []Condition) {
	for _, m := range t.mounted {
		list = append(list, m.degraded...)
		_, own := t.owned(m.dir)
		switch {
		case m.watcher == nil:
			list = append(list, Condition{Path: m.path, Key: "mount", Minor: !own, Reason: fmt.Sprintf("the file system (%s) that is mounted "+
				"here is not searched: the limit is %d such mounts below directories of one user, and %d in all; unmount what is not needed",
				m.kind, maxUserMounted, maxMounted)})
		case m.silent:
			list = append(list, Condition{Path: m.path, Key: "mount", Minor: !own, Reason: fmt.Sprintf("the file system (%s) that is mounted "+
				"here does not answer: new sockets in it are not found; restore its server, or unmount it (umount --lazy)", m.kind)})
		}
	}
	return list
}

// closeMounted stops the watchers of what is mounted.
func (t *tree) closeMounted() {
	limit := time.NewTimer(stopTime)
	defer limit.Stop()
	for _, m := range t.mounted {
		if m.watcher != nil {
			m.stop()
		}
	}
	for _, m := range t.mounted {
		if m.watcher == nil {
			continue
		}
		select {
		case <-m.ended:
		case <-limit.C:
			return
		}
	}
}

// giveBack returns what the tree has of the pools.
func (t *tree) giveBack() {
	for _, d := range t.dirs {
		t.uncount(d)
		for name := range d.refused {
			t.pardon(d, name)
		}
	}
}
