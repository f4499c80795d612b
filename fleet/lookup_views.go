package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// viewKey says what is followed: a node, nodes of an index, or the locks.
type viewKey struct {
	node     string
	name, at string
	number   int
	locks    bool
	pinned   bool // it is followed even if nobody asks
}

// view is something that is followed. All of it is guarded by [Lookup].mu.
type view struct {
	key     viewKey
	source  source
	ready   chan struct{} // closed when it has been read for the first time, or may not be
	denied  error         // why it may not be read; it is not followed then
	used    time.Time
	changed chan struct{} // gets a value after it has changed; nil if nobody listens
	stale   bool          // it has to be read
	watch   int64         // the number of its watch; zero for none
}

// source is what is followed as etcd has it.
type source interface {
	// read reads it and returns what takes it over, without the lock of the lookup. Whatever changes after the revision is watched.
	read(ctx context.Context, from store) (reading, error)
	// take takes a change over. Again says that it has to be read again.
	take(event *mvccpb.Event, now time.Time) (again bool)
}

// reading is what was read.
type reading struct {
	key, end string // the range to watch
	revision int64
	install  func(now time.Time)
}

// nodeView is a node.
type nodeView struct {
	space  Space
	name   string
	facts  *facts
	member *member // nil if there is none
}

func (v *nodeView) read(ctx context.Context, from store) (reading, error) {
	prefix := v.space.NodeRange(v.name)
	read := &facts{}
	revision, err := readPages(ctx, from, prefix, func(kv *mvccpb.KeyValue) { read.put(strings.TrimPrefix(string(kv.Key), prefix), kv) })
	return reading{prefix, clientv3.GetPrefixRangeEnd(prefix), revision, func(now time.Time) { v.facts = read; v.show(now) }}, err
}

func (v *nodeView) take(event *mvccpb.Event, now time.Time) (again bool) {
	key := strings.TrimPrefix(string(event.GetKv().GetKey()), v.space.NodeRange(v.name))
	if event.GetType() == mvccpb.Event_DELETE {
		v.facts.delete(key)
	} else {
		v.facts.put(key, event.GetKv())
	}
	v.show(now)
	return false
}

func (v *nodeView) show(now time.Time) {
	if v.facts.empty() {
		v.member = nil
		return
	}
	v.member = v.facts.member(v.name, v.member, now)
}

func (m *member) instance(p Plugin) Instance {
	return Instance{Plugin: p, Address: m.node.Address, Drained: m.node.Cordon.Drained}
}

// callable returns a plugin of the node if it passes a filter and may be called.
func (m *member) callable(said *Plugin, f Filter) (Instance, bool) {
	if !said.Current || !anyOf(f.Names, said.Name) { // before it is copied
		return Instance{}, false
	}
	i := m.instance(m.plugin(said))
	return i, i.callable() && f.match(i.Plugin)
}

// indexView is a number of nodes of an index: those after a place and, if these are too few, those before it.
type indexView struct {
	prefix, at string
	number     int
	nodes      []string
	all        bool // these are all that there are
}

func (v *indexView) read(ctx context.Context, from store) (reading, error) {
	last := clientv3.GetPrefixRangeEnd(v.prefix)
	begin, end := v.prefix+v.at, last
	found, err := from.get(ctx, begin, clientv3.WithRange(end), clientv3.WithLimit(int64(v.number)), clientv3.WithKeysOnly())
	if err != nil {
		return reading{}, err
	}
	kvs, revision, all := found.Kvs, found.Header.GetRevision(), false
	if missing := v.number - len(kvs); missing > 0 {
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
		if node, ok := nodeIn(v.prefix, string(kv.Key)); ok {
			nodes = append(nodes, node)
		}
	}
	return reading{begin, end, revision, func(time.Time) { v.nodes, v.all = nodes, all }}, nil
}

// take has all of it read again, which is little, unless only the lease of a key has changed.
func (v *indexView) take(event *mvccpb.Event, _ time.Time) (again bool) {
	node, ok := nodeIn(v.prefix, string(event.GetKv().GetKey()))
	return ok && (event.GetType() == mvccpb.Event_DELETE) == slices.Contains(v.nodes, node)
}

// locksView is all locks. Contenders write below their own ranges, so no range of keys is about one lock alone.
type locksView struct {
	space Space
	standing
}

func (v *locksView) read(ctx context.Context, from store) (reading, error) {
	prefix, read := v.space.elections(), standing{}
	revision, err := readPages(ctx, from, prefix, func(kv *mvccpb.KeyValue) { read.put(v.space, kv) })
	return reading{prefix, clientv3.GetPrefixRangeEnd(prefix), revision, func(time.Time) { v.standing = read }}, err
}

func (v *locksView) take(event *mvccpb.Event, _ time.Time) (again bool) {
	key := string(event.GetKv().GetKey())
	if l, ok := lockIn(v.space, key); ok {
		v.remove(l, key)
	}
	if event.GetType() != mvccpb.Event_DELETE {
		v.put(v.space, event.GetKv())
	}
	return false
}

func randomPlace() string { return fmt.Sprintf("%08x", rand.Uint32()) }
