package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/feed"
)

// ErrClosed is the error of calls on a [Reader] that has been closed.
var ErrClosed = errors.New("the reader of the fleet is closed")

// ReaderConfig configures a [Reader].
type ReaderConfig struct {
	Space Space
	// Presence is that of the nodes (default: that of [PublisherConfig]): a node that is gone was last alive that long before its key went.
	Presence time.Duration
	// Logger logs when etcd is lost and found again; nil for no log.
	Logger *slog.Logger
}

// Reader follows the fleet. All methods are safe for concurrent use; only Ready, Find, Watch, Wait and Close block.
type Reader struct {
	follower // its lock is held over a publication, so that a snapshot and what follows on it meet
	config   ReaderConfig
	all      whole
	fleet    followed // all, as the follower sees it
	feed     *feed.Feed[step]
	members  map[string]*member
}

// ReaderStats counts what a [Reader] did.
type ReaderStats struct {
	// Lists counts complete lists, Watches how often a watch began, Events the changes of keys that came through it.
	Lists, Watches, Events uint64
}

// Add returns the sum of two counts.
func (s ReaderStats) Add(other ReaderStats) ReaderStats {
	return ReaderStats{Lists: s.Lists + other.Lists, Watches: s.Watches + other.Watches, Events: s.Events + other.Events}
}

// Open begins to read a fleet. It does not block; Ready does. The caller calls Close.
func Open(c *Cluster, config ReaderConfig) *Reader {
	return open(newDialer(c), c.config.Timeout, config)
}

func open(d dialer, timeout time.Duration, config ReaderConfig) *Reader {
	config.Presence = cmp.Or(config.Presence, DefaultPresence)
	r := &Reader{config: config, members: map[string]*member{}}
	r.init(r, d, timeout, config.Logger, Health{Message: "the fleet has not been read yet", Since: time.Now()})
	r.feed = feed.New(feed.Config[step]{Resync: func(_ string, commit func(step)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		commit(step{})
	}})
	r.all.reader = r
	r.fleet = newFollowed(&r.all)
	r.follow(&r.fleet)
	r.start()
	return r
}

func (*Reader) dropDenied(*followed, error) bool { return false }
func (*Reader) dropIdle(time.Time) time.Duration { return 0 }

func (r *Reader) noteHealth() {
	if !r.health.Current && r.all.listed {
		r.all.contact = r.health.Since
	}
	r.feed.Publish("", step{health: new(r.health)})
}

// Close ends all watches and waits, and returns when nothing of the reader is left. A second call does nothing.
func (r *Reader) Close() {
	r.stop()
	r.feed.Close()
}

// Ready returns when the fleet has been read for the first time. If ctx ends before, the error says why it has not been.
func (r *Reader) Ready(ctx context.Context) error {
	if r.fleet.isRead() {
		return nil
	}
	select {
	case <-r.fleet.ready:
		return nil
	case <-r.done:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("cannot read the fleet: %s: %w", r.Health().Message, context.Cause(ctx))
	}
}

// Nodes returns all nodes, ordered by name.
func (r *Reader) Nodes() []Node {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.nodes(Filter{})
}

// Plugins returns the plugins that pass the filter, in the order of [Snapshot].
func (r *Reader) Plugins(f Filter) []Plugin {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.plugins(f)
}

// Watch returns the present state and a sequence of the changes that follow, each exactly once. What starts to pass the filter is added,
// and what stops passing it is removed. The sequence can be iterated once; it ends with ctx, with the reader, or when the caller stops
// iterating. A change of kind [Resync] replaces changes that the caller was too slow to read: those of at least 8,192 steps, where one step
// is all that changes at once about one node and its plugins.
//
// It blocks until the fleet has been read for the first time. If ctx ends first, the error says why; after Close it is [ErrClosed].
func (r *Reader) Watch(ctx context.Context, f Filter) (Snapshot, iter.Seq[Change], error) {
	if err := r.Ready(ctx); err != nil {
		return Snapshot{}, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	snapshot, steps := r.subscribe(ctx, f)
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

// subscribe returns the present state and a channel of all that follows on it.
func (r *Reader) subscribe(ctx context.Context, f Filter) (Snapshot, <-chan step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Snapshot{Nodes: r.nodes(f), Plugins: r.plugins(f)}, r.feed.Subscribe(ctx, "")
}

// Wait blocks until the plugins that pass the filter meet the condition, and returns them. If ctx ends first, the error is its cause, and
// the plugins are those of that moment.
func (r *Reader) Wait(ctx context.Context, f Filter, until func([]Plugin) bool) ([]Plugin, error) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.Ready(watching); err != nil {
		return nil, err
	}
	snapshot, steps := r.subscribe(watching, f)
	plugins := snapshot.Plugins
	if until(plugins) {
		return plugins, nil
	}
	changed := false
	for step := range steps {
		changed = changed || slices.ContainsFunc(step.changes(), func(change Change) bool {
			_, passes := change.through(f)
			return passes && change.Node == nil
		})
		if !changed || len(steps) > 0 { // one look is enough for all that have come
			continue
		}
		changed = false
		if plugins = r.Plugins(f); until(plugins) {
			return plugins, nil
		}
	}
	if ctx.Err() != nil {
		return plugins, context.Cause(ctx)
	}
	return plugins, ErrClosed
}

func (r *Reader) nodes(f Filter) []Node {
	nodes := make([]Node, 0, len(r.members))
	for _, name := range slices.Sorted(maps.Keys(r.members)) {
		if f.MatchNode(r.members[name].node) {
			nodes = append(nodes, r.members[name].node)
		}
	}
	return nodes
}

func (r *Reader) plugins(f Filter) []Plugin {
	// What is sorted is small: plugins are large, and a fleet has many.
	type found struct {
		*member
		said *Plugin
	}
	var all []found
	for _, name := range slices.Sorted(maps.Keys(r.members)) {
		if !anyOf(f.Nodes, name) {
			continue
		}
		m := r.members[name]
		for _, said := range m.plugins {
			if f.match(m.plugin(said)) {
				all = append(all, found{m, said})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b found) int {
		return cmp.Or(strings.Compare(a.said.Type, b.said.Type), strings.Compare(a.said.Name, b.said.Name))
	})
	plugins := make([]Plugin, len(all))
	for i, p := range all {
		plugins[i] = p.plugin(p.said)
	}
	return plugins
}

// publish makes members visible and announces the difference; nil stands for one that is gone. The caller holds mu.
func (r *Reader) publish(name string, now *member, announce bool) {
	before := r.members[name]
	if now == nil {
		delete(r.members, name)
	} else {
		r.members[name] = now
	}
	if announce && before != now {
		r.feed.Publish("", step{before: before, after: now})
	}
}
