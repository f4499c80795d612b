package fleet

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/broadcast"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// ErrClosed is the error of calls on a [Reader] that has been closed.
var ErrClosed = errors.New("the reader of the fleet is closed")

// ReaderConfig configures a [Reader].
type ReaderConfig struct {
	Presence time.Duration // the time from the last renewal of a node to the end of its key (default: that of [PublisherConfig])
	Logger   *slog.Logger  // logs the loss of etcd and its return; nil for no log
}

// Reader follows all nodes while it is used, and for 5 minutes after that. It is safe for concurrent use; only Ready, Find, Watch, Wait and
// Close block.
type Reader struct {
	follower // its lock is held while changes are published, so that a snapshot and the changes after it are consistent
	space    keys.Space
	presence time.Duration
	feed     *broadcast.Feed[step]
}

// ReaderStats counts complete lists and watches that were started.
type ReaderStats struct{ Lists, Watches uint64 }

// Open returns a reader, which does not connect yet. The caller calls Close.
func Open(c *Cluster, config ReaderConfig) *Reader {
	r := &Reader{space: c.Space(), presence: cmp.Or(config.Presence, DefaultPresence)}
	r.feed = &broadcast.Feed[step]{Weight: step.weight, Resync: func(_ string, commit func(step)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		commit(step{})
	}}
	r.start(c, r.publishHealth, config.Logger)
	return r
}

// Use follows the fleet for 5 more minutes. It does not block.
func (r *Reader) Use() { r.use() }

func (r *Reader) use() *view {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.views[viewKey{}]
	if v == nil {
		r.health = Health{Message: "the fleet has not been read yet", Since: time.Now()}
		v = r.follow(viewKey{}, &whole{Reader: r, nodes: map[string]*Node{}})
	}
	v.used = time.Now()
	return v
}

// IsFollowed reports whether the fleet is followed.
func (r *Reader) IsFollowed() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.views[viewKey{}] != nil
}

// all returns what is known of the fleet. The caller holds mu.
func (r *Reader) all() *whole {
	if v := r.views[viewKey{}]; v != nil {
		all, _ := v.source.(*whole)
		return all
	}
	return &whole{}
}

func (r *Reader) publishHealth() {
	switch all := r.all(); {
	case !all.listed:
	case r.health.Current:
		all.regained = time.Now()
	default: // a lost connection is noticed only after a time of silence
		all.lost = r.health.Since.Add(-pingAfter - pingTimeout)
	}
	r.feed.Publish("", step{health: new(r.health)})
}

// Close ends all watches and waits, and returns when no goroutine of the reader is left. A second call does nothing.
func (r *Reader) Close() {
	r.stop()
	r.feed.Close()
}

// Ready blocks until the fleet has been read for the first time. If ctx ends before that, the error has the reason why the fleet was not
// read.
func (r *Reader) Ready(ctx context.Context) error {
	all := r.use()
	if err := r.firstRead(ctx, all, nil, nil); err != nil {
		return err
	}
	return all.denied
}

// Nodes returns all nodes, ordered by name.
func (r *Reader) Nodes() []*Node {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.nodes(Filter{})
}

// Plugins returns the plugins that pass the filter, in the order of [Snapshot].
func (r *Reader) Plugins(f Filter) []Instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.plugins(f)
}

// Find returns all instances that pass the filter and can be called, ordered by node. It blocks until the fleet has been read for the
// first time.
func (r *Reader) Find(ctx context.Context, f Filter) ([]Instance, error) {
	if err := r.Ready(ctx); err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	var found []Instance
	for _, n := range r.nodes(f) {
		found = append(found, n.callable(f)...)
	}
	return found, nil
}

// Watch returns the present state and a sequence of the changes that follow, each exactly once. A node or plugin that begins to pass the
// filter is added, and one that no longer passes it is removed. The sequence can be iterated once; it ends when ctx ends, when the reader
// is closed, or when the caller stops iterating. A change of kind [Resync] replaces changes that the caller was too slow to read: those of
// at least 8,192 steps, or of fewer steps if nodes have large records. A step has all simultaneous changes of one node and its plugins.
//
// Watch blocks until the fleet has been read for the first time. If ctx ends first, the error has the reason why the fleet was not read;
// after Close it is [ErrClosed].
func (r *Reader) Watch(ctx context.Context, f Filter) (Snapshot, iter.Seq[Change], error) {
	ctx, cancel := context.WithCancel(ctx)
	snapshot, steps, err := r.subscribe(ctx, f)
	if err != nil {
		cancel()
		return Snapshot{}, nil, err
	}
	return snapshot, func(yield func(Change) bool) {
		defer cancel()
		for step := range steps {
			for _, change := range step.changes() {
				if change, ok := change.through(f); ok && !yield(change) {
					return
				}
			}
		}
	}, nil
}

// subscribe returns the state after the first read and a channel of the changes that follow, until ctx ends.
func (r *Reader) subscribe(ctx context.Context, f Filter) (Snapshot, <-chan step, error) {
	if err := r.Ready(ctx); err != nil {
		return Snapshot{}, nil, err
	}
	v := r.use()
	r.mu.Lock()
	defer r.mu.Unlock()
	v.users++
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		v.users--
		v.used = time.Now()
	})
	return Snapshot{Nodes: r.nodes(f), Plugins: r.plugins(f)}, r.feed.Subscribe(ctx, ""), nil
}

// Wait blocks until the plugins that pass the filter meet a condition, and returns them. If ctx ends first, the error is its cause, and the
// plugins are those of the last check.
func (r *Reader) Wait(ctx context.Context, f Filter, until func([]Instance) bool) ([]Instance, error) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	snapshot, steps, err := r.subscribe(watching, f)
	if err != nil {
		return nil, err
	}
	isOther := func(c Change) bool {
		_, passes := c.through(f)
		return passes && c.Node == nil
	}
	plugins := snapshot.Plugins
	for changed := true; ; {
		if changed && len(steps) == 0 { // the plugins are compared once for all steps that have arrived
			if plugins = r.Plugins(f); until(plugins) {
				return plugins, nil
			}
			changed = false
		}
		step, open := <-steps
		if !open {
			return plugins, cmp.Or(context.Cause(ctx), ErrClosed)
		}
		changed = changed || slices.ContainsFunc(step.changes(), isOther)
	}
}

func (r *Reader) nodes(f Filter) []*Node {
	all := r.all().nodes
	nodes := make([]*Node, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n := all[name]; f.MatchNode(n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func (r *Reader) plugins(f Filter) (all []Instance) {
	for _, n := range r.nodes(f) {
		for _, p := range n.plugins {
			if i := (Instance{PluginRecord: p, Node: n}); f.match(i) {
				all = append(all, i)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Instance) int {
		return cmp.Or(strings.Compare(a.GetType(), b.GetType()), strings.Compare(a.GetName(), b.GetName()))
	})
	return all
}

const maxDated = 256 // the maximum number of dead nodes for which date makes a request

// whole is the source of a [Reader]: all nodes.
type whole struct {
	*Reader
	nodes map[string]*Node  // by name
	facts map[string]*facts // by the name of the node
	// anchor is the last write that was seen, and removal the last removal after it. If etcd has both, the watch continues after the write:
	// removals since then are applied again, which has no effect.
	anchor, removal anchor
	listed          bool
	lost, regained  time.Time // the times of the last loss of etcd and of its return; zero for none
}

// anchor is a write, or a removal.
type anchor struct {
	key      string
	revision int64
	value    uint64 // the hash of the value; zero for a removal
}

var anchorSeed = maphash.MakeSeed()

func anchorOf(kv *mvccpb.KeyValue) anchor {
	return anchor{string(kv.Key), kv.ModRevision, maphash.Bytes(anchorSeed, kv.Value)}
}

// publish replaces a node, nil for none, and publishes the difference, but not during the first list.
func (w *whole) publish(name string, now *Node) {
	before := w.nodes[name]
	if now == nil {
		delete(w.nodes, name)
	} else {
		w.nodes[name] = now
	}
	if w.listed && before != now {
		w.feed.Publish("", step{before: before, after: now})
	}
}

// read reads nothing if etcd still has the known history, and otherwise all nodes. install publishes the differences.
func (w *whole) read(ctx context.Context, from store) (reading, error) {
	prefix := w.space.NodeSpace()
	r := reading{key: prefix, end: clientv3.GetPrefixRangeEnd(prefix), revision: w.anchor.revision}
	if known, err := w.isKnown(ctx, from); known || err != nil {
		return r, err
	}
	fresh := &whole{facts: map[string]*facts{}}
	var err error
	r.revision, err = readPages(ctx, from, prefix, func(kv *mvccpb.KeyValue) {
		if name, key, ok := w.split(kv.Key); ok {
			fresh.put(name, key, kv)
		}
	})
	if err != nil {
		return reading{}, err
	}
	if !w.listed {
		date(ctx, from, fresh.facts)
	}
	r.install = func(now time.Time) {
		w.facts, w.anchor, w.removal = fresh.facts, fresh.anchor, anchor{}
		for name := range w.nodes {
			if w.facts[name] == nil {
				w.show(name, now)
			}
		}
		for name := range w.facts {
			w.show(name, now)
		}
		w.listed = true
	}
	return r, nil
}

// isKnown reports whether etcd still has the last write and the last removal that were seen.
func (w *whole) isKnown(ctx context.Context, from store) (bool, error) {
	for _, seen := range []anchor{w.anchor, w.removal} {
		if seen.key == "" {
			continue
		}
		found, err := from.get(ctx, seen.key, clientv3.WithRev(seen.revision))
		if known := rpctypes.Error(err); errors.Is(known, rpctypes.ErrCompacted) || errors.Is(known, rpctypes.ErrFutureRev) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		there := anchor{key: seen.key, revision: seen.revision} // the key was removed
		for _, kv := range found.Kvs {
			there = anchorOf(kv)
		}
		if there != seen {
			return false, nil
		}
	}
	return w.anchor.key != "", nil
}

// apply publishes all changes of a node together.
func (w *whole) apply(events []*clientv3.Event, now time.Time) (again bool) {
	touched := map[string]bool{}
	for _, event := range events {
		name, key, ok := w.split(event.Kv.Key)
		if !ok {
			continue
		}
		if w.put(name, key, valueOf(event)); event.Type == mvccpb.Event_DELETE {
			w.removal = anchor{key: string(event.Kv.Key), revision: event.Kv.ModRevision}
		}
		touched[name] = true
	}
	for name := range touched {
		w.show(name, now)
	}
	return false
}

// split returns the node in a key, and the rest of the key.
func (w *whole) split(key []byte) (name, rest string, ok bool) {
	below, ok := strings.CutPrefix(string(key), w.space.NodeSpace())
	if !ok {
		return "", "", false
	}
	name, rest, ok = strings.Cut(below, "/")
	return name, rest, ok && keys.ValidateNode(name) == nil
}

func (w *whole) put(name, key string, kv *mvccpb.KeyValue) {
	known := cmp.Or(w.facts[name], &facts{})
	if !known.put(key, kv) {
		return
	}
	w.facts[name] = known
	if kv != nil && key != keys.Presence && kv.ModRevision >= w.anchor.revision { // all claims write the same presence
		w.anchor, w.removal = anchorOf(kv), anchor{}
	}
}

// show publishes the present state of a node.
func (w *whole) show(name string, now time.Time) {
	var shown *Node
	if known := w.facts[name]; known != nil && !known.isEmpty() {
		before, latest := w.nodes[name], now.Add(-w.presence)
		seen := latest
		if !w.listed || latest.Before(w.regained) { // the reader did not follow etcd at that time
			if seen = (time.Time{}); before != nil {
				seen = w.lost.Add(-w.presence)
			}
		}
		shown = known.node(name, before, seen, latest)
	} else if known != nil && !known.cordon.Drained { // keep a cordon: it has no lease, and counts when the node returns
		delete(w.facts, name)
	}
	w.publish(name, shown)
}

// date determines when nodes that were dead before the first list last renewed the lease of their retention.
func date(ctx context.Context, from store, all map[string]*facts) {
	asked := 0
	for _, known := range all {
		if known.state() != NodeUnreachable || known.record.lease == 0 {
			continue
		}
		if asked++; asked > maxDated {
			return
		}
		ago, err := from.renewed(ctx, known.record.lease)
		switch {
		case err == nil:
			known.renewed = time.Now().Add(-ago)
		case !IsLeaseUnknown(err): // if the lease is unknown, the retention has just ended
			return
		}
	}
}
