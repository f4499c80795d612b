package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// isMissing reports whether the view is that of a node that does not exist.
func (v *view) isMissing() bool {
	node, ok := v.source.(*nodeView)
	return ok && v.isRead() && node.node == nil
}

var (
	errLetGo   = errors.New("cannot read the fleet: too much is looked up at once; ask again")
	errCrowded = errors.New("cannot read the fleet: too much that was never read is looked up for this user; ask again later")
)

// view returns the view of a key, and follows it. The caller holds mu.
func (l *Lookup) view(k viewKey, by uint32) *view {
	v := l.views[k]
	if v == nil {
		if len(l.views) >= l.most {
			l.dropOldest()
		}
		var s source
		switch k {
		case viewKey{name: k.name}:
			s = &indexView{prefix: l.space.IndexRange(k.name), at: l.place}
		case viewKey{node: k.node}:
			s = &nodeView{lookup: l, name: k.node}
		case viewKey{prefix: l.space.LockSpace()}:
			s = &rangeView{prefix: k.prefix, fresh: l.freshLocks}
		default:
			s = &rangeView{prefix: k.prefix, fresh: l.freshSettings}
		}
		v = l.follow(k, s)
		v.by = by
	}
	v.used = time.Now()
	return v
}

// ask returns the view of a key for a caller that waits for it. The caller holds mu, and calls leave after the wait.
func (l *Lookup) ask(k viewKey, by uint32) (*view, error) {
	if isClosed(l.done) {
		return nil, ErrClosed
	}
	if l.views[k] == nil && l.unread(by) >= maxUnread {
		return nil, errCrowded
	}
	if !l.cachedRead { // so that the records in etcd replace those of the file
		l.cachedRead = true
		for _, name := range l.cache.find(Filter{}) {
			l.view(viewKey{node: name}, 0)
		}
	}
	v := l.view(k, by)
	v.users++
	return v, nil
}

// await returns the view of a key after it has been read. The caller holds mu.
func (l *Lookup) await(ctx context.Context, k viewKey, by uint32, late <-chan time.Time) (*view, error) {
	v, err := l.ask(k, by)
	if err == nil {
		defer l.leave(v)
		err = l.wait(ctx, v, late)
	}
	return v, err
}

// unread returns the number of views that were created for a user and were never read. The caller holds mu.
func (l *Lookup) unread(by uint32) (n int) {
	for _, v := range l.views {
		if v.by == by && !v.isRead() {
			n++
		}
	}
	return n
}

// leave ends the wait of a caller of ask. It drops an unread view for which no other caller waits. The caller holds mu.
func (l *Lookup) leave(v *view) {
	if v.users--; v.users == 0 && !v.isRead() && !v.isPinned() && l.views[v.key] == v && l.cache.get(v.key.node) == nil {
		l.drop(v, errLetGo)
	}
}

// wakeWaiting wakes callers that wait for a view but could use another one.
func (l *Lookup) wakeWaiting() {
	if l.health.Current {
		l.away = make(chan struct{})
	} else if !isClosed(l.away) {
		close(l.away)
	}
}

// dropOldest drops the view that was not used for the longest time, preferably that of a node that does not exist. The caller holds mu.
func (l *Lookup) dropOldest() {
	var oldest *view
	for _, v := range l.views {
		switch {
		case v.isPinned() || v.users > 0:
		case oldest == nil || v.isMissing() && !oldest.isMissing(), v.isMissing() == oldest.isMissing() && v.used.Before(oldest.used):
			oldest = v
		}
	}
	if oldest != nil {
		l.drop(oldest, errLetGo)
	}
}

// wait returns when a view has been read for the first time, or will not be. If late is not nil, the caller does not need the view: wait
// then returns at that time at the latest, and immediately while etcd is away. The caller holds mu, which is released during the wait.
func (l *Lookup) wait(ctx context.Context, v *view, late <-chan time.Time) error {
	away := l.away
	if late == nil {
		away = nil
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	return l.firstRead(ctx, v, away, late)
}

const maxNodeKeys = 16 // the limit for the keys of one node, which has three

// nodeView is the source of a node.
type nodeView struct {
	lookup *Lookup
	name   string
	facts  *facts
	node   *Node // nil if the node does not exist
}

func (v *nodeView) read(ctx context.Context, from store) (reading, error) {
	prefix := v.lookup.space.NodeRange(v.name)
	found, err := from.get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(maxNodeKeys))
	if err != nil {
		return reading{}, err
	}
	read := &facts{}
	for _, kv := range found.Kvs {
		read.put(strings.TrimPrefix(string(kv.Key), prefix), kv)
	}
	install := func(time.Time) { v.facts = read; v.show() }
	return reading{prefix, clientv3.GetPrefixRangeEnd(prefix), found.Header.GetRevision(), install}, nil
}

func (v *nodeView) apply(events []*clientv3.Event, _ time.Time) (again bool) {
	for _, event := range events {
		v.facts.put(strings.TrimPrefix(string(event.Kv.Key), v.lookup.space.NodeRange(v.name)), valueOf(event))
	}
	v.show()
	return false
}

func (v *nodeView) show() {
	if v.node = nil; !v.facts.isEmpty() {
		v.node = v.facts.node(v.name, nil, time.Time{}, time.Time{}) // calls do not use the time when the node was last seen
	}
	v.lookup.cache.update(v.name, v.node)
}

// indexView is the source of at most maxFew nodes of an index: the nodes after a place and, if these are too few, the nodes before it.
type indexView struct {
	prefix, at string
	nodes      []string
	all        bool // whether there are no other nodes
}

func (v *indexView) read(ctx context.Context, from store) (reading, error) {
	last := clientv3.GetPrefixRangeEnd(v.prefix)
	begin, end := v.prefix+v.at, last
	found, err := from.get(ctx, begin, clientv3.WithRange(end), clientv3.WithLimit(maxFew), clientv3.WithKeysOnly())
	if err != nil {
		return reading{}, err
	}
	kvs, revision, all := found.Kvs, found.Header.GetRevision(), false
	if missing := maxFew - len(kvs); missing > 0 {
		before, err := from.get(ctx, v.prefix, clientv3.WithRange(begin), clientv3.WithLimit(int64(missing)), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithRev(revision))
		if err != nil {
			return reading{}, err
		}
		kvs, all = append(kvs, before.Kvs...), len(before.Kvs) < missing
		if begin = v.prefix; !all {
			begin = string(before.Kvs[missing-1].Key)
		}
	} else {
		end = string(kvs[len(kvs)-1].Key) + "\x00"
	}
	var nodes []string
	for _, kv := range kvs {
		if node, ok := keys.IndexedNode(v.prefix, string(kv.Key)); ok {
			nodes = append(nodes, node)
		}
	}
	return reading{begin, end, revision, func(time.Time) { v.nodes, v.all = nodes, all }}, nil
}

// apply reports true, so that the nodes are read again, unless only the lease of a key has changed. Reading them is cheap.
func (v *indexView) apply(events []*clientv3.Event, _ time.Time) (again bool) {
	return slices.ContainsFunc(events, func(event *clientv3.Event) bool {
		node, ok := keys.IndexedNode(v.prefix, string(event.Kv.Key))
		return ok && (event.Type == mvccpb.Event_DELETE) == slices.Contains(v.nodes, node)
	})
}

// rangeView is the source of all keys with a prefix.
type rangeView struct {
	prefix string
	// fresh begins another copy of the keys. put records the value of a key, which is empty after a deletion, and install replaces the copy
	// of the lookup.
	fresh func() (put func(*mvccpb.KeyValue), install func())
	put   func(*mvccpb.KeyValue) // of the present copy
}

func (v *rangeView) read(ctx context.Context, from store) (reading, error) {
	put, install := v.fresh()
	revision, err := readPages(ctx, from, v.prefix, put)
	return reading{v.prefix, clientv3.GetPrefixRangeEnd(v.prefix), revision, func(time.Time) { v.put = put; install() }}, err
}

func (v *rangeView) apply(events []*clientv3.Event, _ time.Time) (again bool) {
	for _, event := range events {
		v.put(event.Kv)
	}
	return false
}

// freshLocks begins a copy of all locks. Each node writes below its own prefix, so there is no range of keys for a single lock.
func (l *Lookup) freshLocks() (put func(*mvccpb.KeyValue), install func()) {
	fresh := &keys.Contenders{}
	return func(kv *mvccpb.KeyValue) { fresh.Put(l.space, kv) }, func() { l.locks = fresh }
}

func (l *Lookup) freshSettings() (put func(*mvccpb.KeyValue), install func()) {
	fresh := map[string]string{}
	return func(kv *mvccpb.KeyValue) {
		node := strings.TrimPrefix(string(kv.Key), l.space.SettingsKey(""))
		if fresh[node] = string(kv.Value); len(kv.Value) == 0 {
			delete(fresh, node)
		}
	}, func() { l.settings = fresh }
}
