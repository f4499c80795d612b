package dynamicplugins

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-dev/patchbay/internal/broadcast"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Store is the [Registry] that [Open] returns, with further methods. It is safe for concurrent use.
type Store struct {
	// A change holds changing of its plugin while it is saved, so changes of one plugin follow each other, and those of different plugins can
	// be saved together. mu is held while a saved change takes effect, its event is published and waiting callers are woken. Dispensing takes
	// no lock: it reads an immutable view of the plugin.
	//
	// Lock order: pluginInstances.changing (of several plugins in the order of their types and names), mu, then entry and the locks of the
	// feed, links and the pool.

	originals      map[string]dispenserOf // immutable
	confirmTimeout time.Duration
	confirmed      atomic.Uint64 // how many plugins stopped being doubtful
	observer       Observer
	unusable       error // why the state could not be loaded; immutable
	save           saver
	reserved       reservations
	feed           *broadcast.Feed[*PluginUpdateEvent]
	pool           *pool

	perPlugin  sync.Map // plugin.Name → *pluginInstances
	dispensers atomic.Pointer[map[string]dispenserOf]
	options    atomic.Pointer[map[string]string] // of the last registered plugin: see intern
	down       atomic.Bool                       // written with mu and entry held
	stopping   chan struct{}                     // closed when down is set
	shutdown   sync.Once

	entry   sync.RWMutex   // held for reading while a change begins
	changes sync.WaitGroup // changes in progress; added to with entry held, while down is false

	// replacing has the plugins whose process is being replaced; nil for none. It is written with mu held.
	replacing atomic.Pointer[map[plugin.Name]*replacement]

	mu    sync.Mutex
	names map[string]int // the number of plugins with a view, by type; types without such plugins are absent
	waits map[plugin.Name]*wait
}

// storeKeeper implements [keeper.Keeper].
type storeKeeper struct{ *Store }

var _ keeper.Keeper[*PluginInfo] = storeKeeper{}

var _ = keeper.Register(func(store any) any {
	r, _ := store.(*Store)
	return storeKeeper{r}
})

// CheckConns implements [keeper.Keeper].
func (r storeKeeper) CheckConns(check func(info *PluginInfo, conn net.Conn) error) {
	r.pool.check = check
}

// instance is one visible instance. It is immutable; a change of its state replaces it.
type instance struct {
	info     *PluginInfo
	restored bool              // from the storage, and not confirmed yet
	dead     *UnreachableError // nil while it is reachable
	rank     uint64            // instances of a plugin are ordered by rank, highest first
	link     *link
}

func newInstance(p *pool, info *PluginInfo) *instance {
	in := &struct {
		instance
		own link
	}{instance: instance{info: info}}
	in.link = &in.own
	in.link.pool, in.link.path, in.link.info = p, info.ConnectionInfo.SocketPath, info
	in.link.callState.Store(retired)
	return &in.instance
}

// view is an immutable snapshot of one plugin for readers. It has at least one instance.
type view struct {
	instances  []*instance // newest first
	current    *instance   // the newest reachable one, or nil
	shared     *instance   // the newest reachable and confirmed one, which shared connections use, or nil
	inlineSlot [1]*instance
}

// dispenserOf is the dispenser of one type; one field is set.
type dispenserOf struct {
	plain PluginDispenser
	conn  ConnDispenser
}

func newRegistry(dispensers map[string]PluginDispenser, options []Option) *Store {
	r := &Store{
		originals:      make(map[string]dispenserOf, len(dispensers)),
		confirmTimeout: defaultConfirmTimeout,
		pool:           newPool(),
		stopping:       make(chan struct{}),
		names:          make(map[string]int),
		waits:          make(map[plugin.Name]*wait),
	}
	for ptype, dispenser := range dispensers {
		r.originals[ptype] = dispenserOf{plain: dispenser}
	}
	for _, option := range options {
		option(r)
	}
	r.dispensers.Store(&r.originals)
	r.feed = &broadcast.Feed[*PluginUpdateEvent]{Resync: r.resync}
	return r
}

// checkConfig returns an error if a dispenser has no plugin type, something is nil, or the timeout is negative.
func (r *Store) checkConfig() error {
	for ptype, dispenser := range r.originals {
		switch {
		case !untrusted.IsType(ptype):
			return fmt.Errorf("a plugin dispenser is for %q, which %s", ptype, untrusted.TypeSyntax)
		case dispenser.plain == nil && dispenser.conn == nil:
			return fmt.Errorf("the plugin dispenser for type %s is nil", ptype)
		}
	}
	switch {
	case r.pool.connections == nil:
		return errors.New("the connections of WithConnections are nil")
	case slices.Contains(r.pool.options, nil):
		return errors.New("an option of WithDialOptions is nil")
	case slices.Contains(r.pool.stats, nil):
		return errors.New("a handler of WithStatsHandlers is nil")
	case r.confirmTimeout < 0:
		return fmt.Errorf("the time to wait for a confirmation is negative: %v", r.confirmTimeout)
	}
	return nil
}

// Shutdown implements [Registry].
func (r *Store) Shutdown() {
	r.shutdown.Do(func() {
		r.mu.Lock()
		r.entry.Lock()
		r.down.Store(true)
		r.entry.Unlock()
		close(r.stopping)
		r.mu.Unlock()

		r.changes.Wait()
		r.feed.Close()
		r.pool.shutdown()
	})
}

func (r *Store) usable() error {
	if r.unusable != nil {
		return r.unusable
	}
	if r.down.Load() {
		return errDown
	}
	return nil
}

// view returns the current view of k, or nil if it has no visible instance.
func (r *Store) view(k plugin.Name) *view {
	if l := r.pluginInstances(k); l != nil {
		return l.view.Load()
	}
	return nil
}

// newView returns nil if no instance in slots is visible.
func newView(slots []slot) *view {
	if !slices.ContainsFunc(slots, func(s slot) bool { return s.shown != nil }) {
		return nil
	}
	v := &view{}
	v.instances = v.inlineSlot[:0]
	for _, s := range slots {
		if s.shown != nil {
			v.instances = append(v.instances, s.shown)
		}
	}
	slices.SortFunc(v.instances, func(a, b *instance) int { return cmp.Compare(b.rank, a.rank) })
	for _, in := range v.instances {
		if in.dead != nil {
			continue
		}
		if v.current == nil {
			v.current = in
		}
		if v.shared == nil && !in.restored {
			v.shared = in
		}
	}
	return v
}

// isDoubtful reports whether the reachable instances are all restored and not confirmed.
func (v *view) isDoubtful() bool { return v != nil && v.shared == nil && v.current != nil }

func (v *view) find(allocID string) *instance {
	if v != nil {
		for _, in := range v.instances {
			if in.info.AllocID == allocID {
				return in
			}
		}
	}
	return nil
}

// link returns the link that shared connections use, or nil.
func (v *view) link() *link {
	if v == nil || v.shared == nil {
		return nil
	}
	return v.shared.link
}
