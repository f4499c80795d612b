package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/reconciler"
)

const (
	// few is how many nodes a caller looks at that may take any of those which have a plugin.
	few = 16
	// stickyPlaces is the number of places in the index at which calls with keys look for nodes.
	stickyPlaces = 256
	// viewIdle is how long something is followed after it was last asked for.
	viewIdle = 5 * time.Minute
	// maxViews bounds what is followed at once. Above it, what was not asked for for the longest time is let go of.
	maxViews = 4096
	// completeFor is for how long the index is believed to have every node after it had.
	completeFor = 10 * time.Minute
)

// LookupConfig configures a [Lookup].
type LookupConfig struct {
	Space Space
	// Whole returns a reader of the whole fleet, and a function that releases it, for what the index cannot answer: all instances of a
	// plugin, and plugins on nodes that are not in the index because they run an earlier version. If it is nil, the lookup opens a reader
	// when it first needs one.
	Whole func() (r *Reader, release func(), err error)
	// Timeout bounds one request to etcd (default that of the cluster).
	Timeout time.Duration
	// Logger logs when etcd is lost and found again; nil for no log.
	Logger *slog.Logger
}

// Lookup finds the plugins that are called, and follows only those: for a plugin that may be called on any node, a few of the nodes that
// have it; otherwise the node that the call names. Its cost does not depend on the size of the fleet. Once a lock is asked for, it follows
// all locks, which costs more the more nodes compete for them. It connects to etcd for the first request and disconnects after 5 minutes
// without one. While etcd is unavailable, it answers with what it last knew. All methods are safe for concurrent use.
type Lookup struct {
	config  LookupConfig
	cluster *Cluster
	dialer  dialer
	start   string // the place at which this program looks for any node
	cancel  context.CancelFunc
	done    chan struct{}
	changed chan struct{} // gets a value when a view has to be read

	mu       sync.Mutex
	views    map[viewKey]*view
	watching map[int64]*view // by the number of the watch
	lastID   int64
	health   Health
	stats    ReaderStats
	complete time.Time // until when every node is taken to be in the index
	whole    *Reader   // opened by the lookup itself; nil if there is none
}

// OpenLookup returns a lookup, which does not connect yet. The error says what is invalid in the space. The caller calls Close.
func OpenLookup(c *Cluster, config LookupConfig) (*Lookup, error) {
	if err := config.Space.Validate(); err != nil {
		return nil, fmt.Errorf("cannot look plugins up in the fleet: %w", err)
	}
	config.Timeout = cmp.Or(config.Timeout, c.config.Timeout)
	config.Logger = cmp.Or(config.Logger, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	l := &Lookup{
		config: config, cluster: c, dialer: newDialer(c), start: randomPlace(), cancel: cancel, done: make(chan struct{}),
		changed: make(chan struct{}, 1), views: map[viewKey]*view{}, watching: map[int64]*view{}, health: Health{Current: true},
	}
	if config.Whole == nil {
		l.config.Whole = l.open
	}
	go l.run(ctx)
	return l, nil
}

// Close aborts all requests, and returns when nothing of the lookup is left. A second call does nothing.
func (l *Lookup) Close() {
	l.cancel()
	<-l.done
	l.mu.Lock()
	whole := l.whole
	l.whole = nil
	l.mu.Unlock()
	if whole != nil {
		whole.Close()
	}
}

// open returns the reader of a lookup that was given none.
func (l *Lookup) open() (*Reader, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done:
		return nil, nil, ErrClosed
	default:
	}
	if l.whole == nil {
		l.whole = Open(l.cluster, ReaderConfig{Space: l.config.Space, Timeout: l.config.Timeout, Logger: l.config.Logger})
	}
	return l.whole, func() {}, nil
}

// Health says how current the lookup is. It counts as current while it follows nothing.
func (l *Lookup) Health() Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health
}

// Stats returns what has been done so far. Lists counts the reads of a node, of the index or of the locks.
func (l *Lookup) Stats() ReaderStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Find is a [Finder]. For a plugin that may be called on any node, it returns the instances on a few nodes, different ones for each
// program, unless a [Dialer] asks for more. It blocks until they have been read for the first time, or ctx ends. The error says why they
// could not be read; after Close it is [ErrClosed].
func (l *Lookup) Find(ctx context.Context, f Filter) ([]Instance, error) {
	switch {
	case len(f.Nodes) > 0:
		return l.on(ctx, f.Nodes, f)
	case f.few == 0 || len(f.Names) != 1:
		return l.inWhole(ctx, f)
	}
	at := l.start
	if f.sticky != "" {
		at = fmt.Sprintf("%08x", hash(f.sticky)%stickyPlaces<<24)
	}
	for number := max(f.few, few); ; number *= 4 {
		nodes, all, err := l.nodes(ctx, f.Names[0], at, number)
		if isDenied(err) {
			return l.inWhole(ctx, f)
		}
		if err != nil {
			return nil, err
		}
		found, err := l.on(ctx, nodes, f)
		ready := slices.ContainsFunc(found, func(i Instance) bool { return i.preferred() })
		switch {
		case err != nil:
			return nil, err
		case ready || all && (len(found) > 0 || l.isComplete()):
			return found, nil
		case all:
			return l.inWhole(ctx, f)
		}
	}
}

// on returns what can be called on some nodes.
func (l *Lookup) on(ctx context.Context, nodes []string, f Filter) ([]Instance, error) {
	views := make([]*nodeView, len(nodes))
	waits := make([]*view, len(nodes))
	l.mu.Lock()
	for i, name := range nodes {
		waits[i] = l.view(viewKey{node: name}, func() source { return &nodeView{space: l.config.Space, name: name} })
		views[i], _ = waits[i].source.(*nodeView)
	}
	l.mu.Unlock()
	for _, v := range waits {
		if err := l.wait(ctx, v); err != nil {
			return nil, err
		}
	}
	f.States = []reconciler.State{reconciler.StateRegistered, reconciler.StateUnreachable}
	var found []Instance
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range views {
		if v.member == nil {
			continue
		}
		for _, said := range v.member.plugins {
			if i, ok := v.member.callable(said, f); ok {
				found = append(found, i)
			}
		}
	}
	return found, nil
}

// Follow returns a channel that receives a value after something about a node has changed, and a function that returns its current state,
// or false if nothing is known about it yet. The node is followed until the lookup is closed.
func (l *Lookup) Follow(node string) (changed <-chan struct{}, now func() (Node, bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.view(viewKey{node: node, pinned: true}, func() source { return &nodeView{space: l.config.Space, name: node} })
	followed, _ := v.source.(*nodeView)
	return v.changed, func() (Node, bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if followed.member == nil {
			return Node{}, false
		}
		return followed.member.node, true
	}
}

// FollowLocks returns a channel that receives a value after something about the locks has changed, and a function that returns which nodes
// compete for each lock now. The locks are followed until the lookup is closed.
func (l *Lookup) FollowLocks() (changed <-chan struct{}, now func() map[Lock][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.view(viewKey{locks: true, pinned: true}, func() source { return &locksView{space: l.config.Space} })
	followed, _ := v.source.(*locksView)
	return v.changed, func() map[Lock][]string {
		l.mu.Lock()
		defer l.mu.Unlock()
		competing := map[Lock][]string{}
		for lock := range followed.standing {
			competing[lock] = followed.nodes(lock)
		}
		return competing
	}
}

// nodes returns at most a number of nodes that have a plugin of a name, from a place on, and whether these are all.
func (l *Lookup) nodes(ctx context.Context, name, at string, number int) (nodes []string, all bool, err error) {
	l.mu.Lock()
	v := l.view(viewKey{name: name, at: at, number: number}, func() source {
		return &indexView{prefix: l.config.Space.index(name), at: at, number: number}
	})
	l.mu.Unlock()
	if err := l.wait(ctx, v); err != nil {
		return nil, false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	index, _ := v.source.(*indexView)
	return index.nodes, index.all, nil
}

// Holder returns the node that holds a lock, for [DialerConfig].Leader. Exclusive is false for a lock that nobody holds or wants. Holder
// follows all locks. It blocks until they have been read for the first time, or ctx ends. The error says why they could not be read; after
// Close it is [ErrClosed].
func (l *Lookup) Holder(ctx context.Context, lock Lock) (node string, exclusive bool, err error) {
	l.mu.Lock()
	v := l.view(viewKey{locks: true}, func() source { return &locksView{space: l.config.Space} })
	l.mu.Unlock()
	if err := l.wait(ctx, v); err != nil {
		return "", false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	locks, _ := v.source.(*locksView)
	holder, exclusive := locks.holder(lock)
	return holder.node, exclusive, nil
}

// isComplete says whether every node is taken to be in the index.
func (l *Lookup) isComplete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.complete)
}

// inWhole asks the reader of the whole fleet. What it finds though every node is in the index, the index does not tell.
func (l *Lookup) inWhole(ctx context.Context, f Filter) ([]Instance, error) {
	reader, release, err := l.config.Whole()
	if err != nil {
		return nil, err
	}
	defer release()
	found, err := reader.Find(ctx, f)
	unindexed := func(n Node) bool { return n.State != NodeStopped && !n.Indexed }
	if err == nil && len(found) == 0 && !slices.ContainsFunc(reader.Nodes(), unindexed) {
		l.mu.Lock()
		l.complete = time.Now().Add(completeFor)
		l.mu.Unlock()
	}
	return found, err
}

// view returns what is followed under a key, from now on if it was not. The caller holds mu.
func (l *Lookup) view(k viewKey, begin func() source) *view {
	v := l.views[k]
	if v == nil {
		if eldest := l.eldest(); len(l.views) >= maxViews && eldest != nil {
			l.drop(eldest)
		}
		v = &view{key: k, source: begin(), ready: make(chan struct{}), stale: true}
		if k.pinned {
			v.changed = make(chan struct{}, 1)
		}
		l.views[k] = v
		tell(l.changed)
	}
	v.used = time.Now()
	return v
}

// eldest returns what was not asked for for the longest time. The caller holds mu.
func (l *Lookup) eldest() *view {
	var eldest *view
	for _, v := range l.views {
		if !v.key.pinned && (eldest == nil || v.used.Before(eldest.used)) {
			eldest = v
		}
	}
	return eldest
}

// wait returns when a view has been read for the first time.
func (l *Lookup) wait(ctx context.Context, v *view) error {
	select {
	case <-v.ready: // also if ctx has ended: then nothing has to be waited for
	default:
		select {
		case <-v.ready:
		case <-l.done:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("cannot read the fleet: %s: %w", cmp.Or(l.Health().Message, "etcd has not answered yet"), context.Cause(ctx))
		}
	}
	if v.denied != nil {
		return fmt.Errorf("cannot read the fleet: %w", explain(v.denied))
	}
	return nil
}

func (l *Lookup) lost(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	message := explain(err).Error()
	if l.stats.Lists > 0 {
		message = "the fleet may have changed since: " + message
	}
	if l.health.lose(message) {
		l.config.Logger.Warn("fleet: " + message)
	}
}

func (l *Lookup) found() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.health.Current {
		l.config.Logger.Info("fleet: what is called is being followed again")
	}
	l.health = Health{Current: true}
}

// errIdle says that nothing has been asked for some time.
var errIdle = errors.New("nothing is looked up")
