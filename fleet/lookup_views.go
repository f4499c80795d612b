package fleet

import (
	"cmp"
	"context"
	"errors"
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
	node   string
	name   string
	number int
	locks  bool
	pinned bool // it is followed even if nobody asks
}

// view is something that is followed. All of it is guarded by [Lookup].mu.
type view struct {
	key     viewKey
	source  source
	ready   chan struct{} // closed when it has been read for the first time, or will not be
	denied  error         // why it will not be read; it is not followed then
	used    time.Time
	by      uint32        // who asked for it first
	waiting int           // how many wait for it
	changed chan struct{} // gets a value after it has changed; nil if nobody listens
	stale   bool          // it has to be read
	watch   int64         // the number of its watch; zero for none
}

// isRead says whether nobody has to wait for it.
func (v *view) isRead() bool {
	select {
	case <-v.ready:
		return true
	default:
		return false
	}
}

// isNothing says that it is a node that is none, or none yet.
func (v *view) isNothing() bool {
	node, ok := v.source.(*nodeView)
	return ok && v.isRead() && node.member == nil
}

// why returns why it will not be read.
func (v *view) why() error {
	if v.denied == nil {
		return nil
	}
	return fmt.Errorf("cannot read the fleet: %w", explain(v.denied))
}

var (
	// errLetGo says that a view was dropped before it was read.
	errLetGo = errors.New("too much is looked up at once; ask again")
	// errCrowded says that a user waits for too much.
	errCrowded = errors.New("cannot read the fleet: too much that was never read is looked up for this user; ask again later")
	// errLate says that something else will do.
	errLate = errors.New("it is not read in time")
)

// view returns what is followed under a key, from now on if it was not. The caller holds mu.
func (l *Lookup) view(k viewKey, by uint32, begin func() source) *view {
	v := l.views[k]
	if v == nil {
		if len(l.views) >= maxViews {
			l.dropEldest()
		}
		v = &view{key: k, source: begin(), ready: make(chan struct{}), stale: true, by: by}
		if k.pinned {
			v.changed = make(chan struct{}, 1)
		}
		l.views[k] = v
		l.unread[by]++
		tell(l.changed)
	}
	v.used = time.Now()
	return v
}

// ask returns what is followed under a key for somebody who waits for it, and calls leave. The caller holds mu.
func (l *Lookup) ask(k viewKey, by uint32, begin func() source) (*view, error) {
	if l.views[k] == nil && l.unread[by] >= maxUnread {
		return nil, errCrowded
	}
	v := l.view(k, by, begin)
	v.waiting++
	return v, nil
}

// leave is called when somebody does not wait any more. What nobody waits for is not read.
func (l *Lookup) leave(views ...*view) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range views {
		if v.waiting--; v.waiting == 0 && v.stale && !v.isRead() && !v.key.pinned && l.views[v.key] == v { // nor is it being read
			l.drop(v)
		}
	}
}

// dropEldest lets go of what was not asked for for the longest time, of nodes that are none first. The caller holds mu.
func (l *Lookup) dropEldest() {
	var eldest *view
	for _, v := range l.views {
		switch {
		case v.key.pinned || v.waiting > 0:
		case eldest == nil || v.isNothing() && !eldest.isNothing(), v.isNothing() == eldest.isNothing() && v.used.Before(eldest.used):
			eldest = v
		}
	}
	if eldest != nil {
		l.drop(eldest)
	}
}

// drop lets go of a view. Its watch ends with the next look at what has to be read. The caller holds mu.
func (l *Lookup) drop(v *view) {
	delete(l.views, v.key)
	l.settle(v, errLetGo)
	if v.watch != 0 {
		tell(l.changed)
	}
}

// settle is called when a view has been read, or will not be. The caller holds mu.
func (l *Lookup) settle(v *view, denied error) {
	if v.isRead() {
		return
	}
	v.denied = denied
	close(v.ready)
	if l.unread[v.by]--; l.unread[v.by] == 0 {
		delete(l.unread, v.by)
	}
}

// wait returns when a view has been read for the first time, or will not be. If late is not nil, something else will do: then it waits no
// longer than that, and not at all while etcd is away.
func (l *Lookup) wait(ctx context.Context, v *view, late <-chan time.Time) error {
	if v.isRead() { // also if ctx has ended: then nothing has to be waited for
		return nil
	}
	var away <-chan struct{}
	if late != nil {
		l.mu.Lock()
		away = l.away
		l.mu.Unlock()
	}
	select {
	case <-v.ready:
		return nil
	case <-away:
		return errLate
	case <-late:
		return errLate
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("cannot read the fleet: %s: %w", cmp.Or(l.Health().Message, "etcd has not answered yet"), context.Cause(ctx))
	}
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
	Contenders
}

func (v *locksView) read(ctx context.Context, from store) (reading, error) {
	prefix, read := v.space.LockSpace(), Contenders{}
	revision, err := readPages(ctx, from, prefix, func(kv *mvccpb.KeyValue) { read.Put(v.space, kv) })
	return reading{prefix, clientv3.GetPrefixRangeEnd(prefix), revision, func(time.Time) { v.Contenders = read }}, err
}

func (v *locksView) take(event *mvccpb.Event, _ time.Time) (again bool) {
	v.Put(v.space, event.GetKv())
	return false
}

func randomPlace() string { return fmt.Sprintf("%08x", rand.Uint32()) }
