package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// maxFew is how many names of nodes are read for one plugin. A call to any node then reads the records of a few of them.
	maxFew = 64
	// unreadWait is how long a call that could use another node waits for a view that was not read yet.
	unreadWait = time.Second
	// maxViews bounds the views for which no caller waits, and maxUnread the views of one user that were never read.
	maxViews, maxUnread = 4096, 1024
)

// LookupConfig configures a [Lookup].
type LookupConfig struct {
	// Whole reads the whole fleet. The lookup uses it for what the index does not have: all instances of a plugin, and labels that few
	// nodes have.
	Whole interface {
		Find(ctx context.Context, f Filter) ([]Instance, error)
	}
	// NodeFile keeps the nodes that were called, so that they can be called after a restart without etcd. Its directory must exist, and no
	// two lookups may share it. Empty for none.
	NodeFile string
	Logger   *slog.Logger // logs the loss of etcd and its return; nil for no log
}

// Lookup finds the plugins that are called, and follows only those: for a plugin that may be called on any node, a few of the nodes that
// have it; otherwise the node that the call names. Its cost does not depend on the size of the fleet. After the first call of an exclusive
// plugin it follows all locks; the cost grows with the number of nodes that compete for them. It connects to etcd for the first request,
// and disconnects after 5 minutes without requests. While etcd is unavailable, it returns what it has read last. It is safe for concurrent
// use.
type Lookup struct {
	follower
	config   LookupConfig
	space    keys.Space
	place    string            // the place in the index at which the lookup begins
	locks    *keys.Contenders  // as last read, like settings
	settings map[string]string // by the name of the node
	most     int               // maxViews
	away     chan struct{}     // closed while etcd is unavailable

	cache      *nodeCache
	cachedRead bool // whether the nodes of the cache have been added to the views
}

// OpenLookup returns a lookup, which does not connect yet. The caller calls Close.
func OpenLookup(c *Cluster, config LookupConfig) *Lookup {
	l := &Lookup{
		config: config, space: c.Space(), place: fmt.Sprintf("%08x", rand.Uint32()), most: maxViews,
		away: make(chan struct{}), locks: &keys.Contenders{},
	}
	l.start(c, l.wakeWaiting, config.Logger)
	l.cache = openNodeCache(config.NodeFile, l.log)
	return l
}

// Close aborts all requests, and returns when no goroutine of the lookup is left. A second call does nothing.
func (l *Lookup) Close() {
	l.stop()
	l.cache.close()
}

// Find returns the instances that pass the filter and can be called: with [Filter.Few] those on a few nodes, different ones for each
// program. It blocks until they have been read for the first time, or ctx ends; while etcd is unavailable, it returns the known instances,
// even those from before a restart. After Close, the error is [ErrClosed].
func (l *Lookup) Find(ctx context.Context, f Filter) (found []Instance, err error) {
	defer func() {
		for i := range found {
			found[i].cache = l.cache
		}
	}()
	switch {
	case len(f.Nodes) > 0:
		return l.on(ctx, f.Nodes, f)
	case f.Few == 0 || len(f.Names) != 1:
		return l.config.Whole.Find(ctx, f)
	}
	nodes, all, err := l.nodes(ctx, f)
	switch {
	case err != nil:
		return nil, err
	case f.Few > maxFew && !all:
		return l.config.Whole.Find(ctx, f)
	}
	found, err = l.on(ctx, nodes[:min(f.Few, len(nodes))], f)
	// If none of the instances is preferred, read more of them once. After that, the caller tries the others and calls Find again.
	if f.Few < len(nodes) && !slices.ContainsFunc(found, Instance.isPreferred) {
		if more, failed := l.on(ctx, nodes, f); failed == nil || len(found) == 0 {
			found, err = more, failed
		}
	}
	if err == nil && len(found) == 0 && !all {
		return l.config.Whole.Find(ctx, f)
	}
	return found, err
}

// on returns the instances on some nodes that can be called. Nodes that are not read in time are left out if others can be called.
func (l *Lookup) on(ctx context.Context, nodes []string, f Filter) ([]Instance, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var views []*view
	var full error // the reason why views does not have all nodes
	for i := 0; i < len(nodes) && full == nil; i++ {
		var v *view
		if v, full = l.ask(viewKey{node: nodes[i]}, f.By); full == nil {
			defer l.leave(v)
			views = append(views, v)
		}
	}
	timer := time.NewTimer(unreadWait)
	defer timer.Stop()
	for {
		found, unread, err := l.read(views, f)
		if unread != nil {
			late := timer.C
			if len(found) == 0 {
				late = nil
			}
			if err = l.wait(ctx, unread, late); err == nil {
				continue
			}
			found, _, _ = l.read(views, f) // other views may have been read during the wait
		}
		if len(found) > 0 {
			return found, nil
		}
		return nil, cmp.Or(err, full)
	}
}

// read returns the instances that can be called in the views that were read, the first view that was not read, and the reason why a view
// may not be read. The caller holds mu.
func (l *Lookup) read(views []*view, f Filter) (found []Instance, unread *view, denied error) {
	for _, v := range views {
		node, _ := v.source.(*nodeView)
		switch {
		case !v.isRead():
			unread = cmp.Or(unread, v)
			if known := l.cache.get(node.name); known != nil {
				found = append(found, known.callable(f)...)
			}
		case v.denied != nil:
			denied = cmp.Or(denied, v.denied)
		case node.node != nil:
			found = append(found, node.node.callable(f)...)
		}
	}
	return found, unread, denied
}

// FollowLocks follows the locks and the settings of the nodes until the lookup is closed. The channel receives a value after a change, and
// now returns the states of the locks, and the settings by the name of the node.
func (l *Lookup) FollowLocks() (changed <-chan struct{}, now func() ([]keys.LockState, map[string]string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := make(chan struct{}, 1)
	for _, prefix := range []string{l.space.LockSpace(), l.space.SettingsKey("")} {
		l.view(viewKey{prefix: prefix}, 0).changed = c
	}
	Notify(c) // one of them may have been read before
	return c, func() ([]keys.LockState, map[string]string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.locks.States(), maps.Clone(l.settings)
	}
}

// nodes returns at most maxFew nodes that have a plugin of a name, and reports whether there are no others.
func (l *Lookup) nodes(ctx context.Context, f Filter) (nodes []string, all bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := viewKey{name: f.Names[0]}
	var called []string
	var late <-chan time.Time
	if v := l.views[k]; v == nil || !v.isRead() {
		called = l.cache.find(f)
	}
	if len(called) > 0 {
		timer := time.NewTimer(unreadWait)
		defer timer.Stop()
		late = timer.C
	}
	v, err := l.await(ctx, k, f.By, late)
	if errors.Is(err, errLate) {
		return called[:min(len(called), maxFew)], false, nil
	}
	if err != nil {
		return nil, false, err
	}
	index, _ := v.source.(*indexView)
	return index.nodes, index.all, v.denied
}

// Holder returns the node that holds a lock. exclusive is false for a lock that no node holds or wants. Holder blocks until all locks have
// been read for the first time, or ctx ends. After Close, the error is [ErrClosed].
func (l *Lookup) Holder(ctx context.Context, lock plugin.Name) (node string, exclusive bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, err := l.await(ctx, viewKey{prefix: l.space.LockSpace()}, 0, nil)
	if err != nil {
		return "", false, err
	}
	node, exclusive = l.locks.Holder(lock)
	return node, exclusive, v.denied
}
