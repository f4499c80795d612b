package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

const (
	pageSize    = 500 // the number of keys in one page of a list, unless their values are too large for one message
	readsAtOnce = 8   // sources that are read concurrently

	idleAfter = 5 * time.Minute // how long a source is followed after its last use
)

var (
	errHistory = errors.New("etcd was restored, replaced or compacted; the fleet is read again")
	errQuiet   = errors.New("etcd did not begin a watch in time; see that it runs and can be reached")
	errEnded   = errors.New("etcd has ended a watch; the fleet is read again")
	errLate    = errors.New("it is not read in time")
)

// source is a copy of keys in etcd. Its methods are called by one goroutine.
type source interface {
	// read reads the keys. They are watched from the next revision on.
	read(ctx context.Context, from store) (reading, error)
	// apply records changes, and reports whether the source has to be read again. The caller holds the lock of the follower.
	apply(events []*clientv3.Event, now time.Time) (again bool)
}

type reading struct {
	key, end string // the range to watch
	revision int64
	// install replaces the copy; nil if the copy is current. The caller holds the lock of the follower.
	install func(now time.Time)
}

// viewKey identifies a view: that of a node, of the index of a name of plugins, of all keys with a prefix or, if it is zero, of all nodes.
type viewKey struct{ node, name, prefix string }

// view is a source that is followed. It is guarded by the lock of its follower.
type view struct {
	source
	key     viewKey
	by      uint32        // the user for whom the view was created; zero for none
	ready   chan struct{} // closed after the first read, or when the view is denied or dropped
	denied  error         // the reason why the source was not read; nil if it was
	changed chan struct{} // receives a value after a change; nil for none
	used    time.Time     // the time of the last use
	users   int           // the number of users who need the view at present
}

// isRead reports whether the source has been read, or was denied or dropped before that.
func (v *view) isRead() bool { return isClosed(v.ready) }

// isPinned reports whether the view is followed even if it is not used.
func (v *view) isPinned() bool { return v.changed != nil }

// settle records the end of the first read, or the error if the source will not be read. Later calls do nothing.
func (v *view) settle(denied error) {
	if !v.isRead() {
		v.denied = denied
		close(v.ready)
	}
}

// follower keeps sources current, over one connection to one member at a time. Each source is read, and then watched from the revision at
// which it was read. When the connection is lost, etcd may be restored or replaced, so each source is read again over the next connection;
// the source decides how much of it.
type follower struct {
	dialer  *dialer
	timeout time.Duration // of one request
	log     *slog.Logger
	cancel  context.CancelFunc
	done    chan struct{}
	added   chan struct{} // receives a value when views has changed
	// noteHealth is called when the health has changed, with mu.
	noteHealth func()

	mu     sync.RWMutex
	views  map[viewKey]*view
	health Health
	stats  ReaderStats
}

// start begins to follow. The caller calls stop.
func (f *follower) start(c *Cluster, noteHealth func(), log *slog.Logger) {
	f.noteHealth, f.dialer, f.timeout, f.log = noteHealth, newDialer(c), c.Timeout(), cmp.Or(log, slog.New(slog.DiscardHandler))
	f.done, f.added, f.views, f.health = make(chan struct{}), make(chan struct{}, 1), map[viewKey]*view{}, Health{Current: true}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go f.run(ctx)
}

func (f *follower) stop() {
	f.cancel()
	<-f.done
}

// Health reports whether the views are current. If there are no views, it reports true.
func (f *follower) Health() Health {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.health
}

// Stats returns the numbers of requests and changes so far.
func (f *follower) Stats() ReaderStats {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.stats
}

// follow begins to follow a source. The caller holds mu.
func (f *follower) follow(k viewKey, s source) *view {
	v := &view{source: s, key: k, ready: make(chan struct{})}
	f.views[k] = v
	Notify(f.added)
	return v
}

// drop ends a view. The caller holds mu.
func (f *follower) drop(v *view, why error) {
	delete(f.views, v.key)
	v.settle(why)
	Notify(f.added)
}

// firstRead returns when a view has been read for the first time, or will not be, even if ctx has ended. The error is errLate if one of
// the other channels has a value before that.
func (f *follower) firstRead(ctx context.Context, v *view, away <-chan struct{}, late <-chan time.Time) error {
	if v.isRead() {
		return nil
	}
	select {
	case <-v.ready:
		return nil
	case <-away:
		return errLate
	case <-late:
		return errLate
	case <-f.done:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("cannot read the fleet: %s: %w", cmp.Or(f.Health().Message, "etcd has not answered yet"), context.Cause(ctx))
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	defer close(f.done)
	failures := 0
	for delay := time.Duration(0); backoff.Pause(ctx, delay); {
		if f.isIdle() {
			select {
			case <-f.added:
			case <-ctx.Done():
			}
			failures, delay = 0, 0
			continue
		}
		progressed, err := f.dialer.attempt(ctx, func() (bool, error) { return f.connect(ctx) })
		failures++
		switch delay = Retry.After(failures); {
		case ctx.Err() != nil:
			return
		case err == nil: // nothing is followed any more
			failures, delay = 0, 0
			continue
		case progressed:
			failures, delay = 1, spread(Retry.Min)
		}
		if !progressed || !isExpired(err) { // if the token has expired, the next connection gets a new one
			f.lost(err)
		}
	}
}

func (f *follower) isIdle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.views) > 0 {
		return false
	}
	f.regained("fleet: nothing is followed")
	return true
}

// connect follows the sources over one connection, until it is lost, a request fails or there are no sources. progressed reports whether a
// source was read.
func (f *follower) connect(ctx context.Context) (progressed bool, err error) {
	from, err := f.dialer.dial(ctx, f.timeout)
	if err != nil {
		return false, err
	}
	defer from.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(from.life(), func() { cancel(context.Cause(from.life())) })()
	c := &connection{follower: f, store: from, turns: make(chan struct{}, readsAtOnce), stops: map[*view]func(){}}
	defer c.running.Wait()
	defer cancel(nil)
	for c.begin(ctx, cancel) {
		waiting, stop := context.WithTimeout(ctx, time.Minute)
		select {
		case <-f.added:
		case <-waiting.Done():
		}
		if stop(); ctx.Err() != nil {
			return c.progressed.Load(), context.Cause(ctx)
		}
	}
	return true, nil
}

// connection is one connection of a follower to etcd.
type connection struct {
	*follower
	store
	turns      chan struct{}    // has a value for each source that is being read
	stops      map[*view]func() // stops following a view
	running    sync.WaitGroup
	progressed atomic.Bool
}

// begin follows the views that are new, and stops following those that were dropped, or not used for some time. While etcd is away, and
// until it has answered again, it keeps the latter, because they may be all that is known. It reports whether there are views.
func (c *connection) begin(ctx context.Context, fail context.CancelCauseFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.views {
		if c.health.Current && !v.isPinned() && v.users == 0 && time.Since(v.used) >= idleAfter {
			c.drop(v, errLetGo)
		}
	}
	for v, stop := range c.stops {
		if c.views[v.key] != v {
			stop()
			delete(c.stops, v)
		}
	}
	for _, v := range c.views {
		if c.stops[v] != nil {
			continue
		}
		following, stop := context.WithCancel(ctx)
		c.stops[v] = stop
		c.running.Go(func() {
			if err := c.keep(following, v); err != nil && following.Err() == nil {
				fail(err)
			}
		})
	}
	return len(c.stops) > 0
}

// keep reads a source and watches it, until ctx ends. An error ends the connection.
func (c *connection) keep(ctx context.Context, v *view) error {
	for ctx.Err() == nil {
		select {
		case c.turns <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		r, err := v.read(ctx, c.store)
		<-c.turns
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // The request was canceled.
		case isDenied(err) && c.denied(v, err):
			return nil
		case err != nil:
			return err
		}
		c.install(v, r)
		if err := c.watch(ctx, v, r); err != nil {
			return err
		}
	}
	return nil
}

// denied ends a view that the user may not read, so that the next request reads it again. It reports whether the other views are still
// followed. A pinned view, and that of all nodes, are read again over the next connection.
func (c *connection) denied(v *view, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.key == (viewKey{}) {
		return false
	}
	c.found()
	c.stats.Lists++
	why := fmt.Errorf("cannot read the fleet: %w", Explain(err))
	if v.settle(why); !v.isPinned() {
		c.drop(v, why)
	}
	return true
}

func (c *connection) install(v *view, r reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found()
	if r.install != nil && c.views[v.key] == v {
		r.install(time.Now())
		c.stats.Lists++
		Notify(v.changed)
	}
	v.settle(nil)
}

// watch applies the changes of a source until it has to be read again. The error is the reason why the watch has ended.
func (c *connection) watch(ctx context.Context, v *view, r reading) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(c.timeout, func() { cancel(errQuiet) })
	changes := c.store.watch(ctx, r.key, clientv3.WithRange(r.end), clientv3.WithRev(r.revision+1), clientv3.WithFragment())
	timer.Stop()
	if ctx.Err() == nil {
		c.mu.Lock()
		c.stats.Watches++
		c.mu.Unlock()
	}
	for response := range changes {
		if response.CompactRevision > 0 {
			return nil
		}
		if err := watchError(response); err != nil {
			return err
		}
		if c.apply(v, response.Events) {
			return nil
		}
	}
	return cmp.Or(context.Cause(ctx), errEnded)
}

func (c *connection) apply(v *view, events []*clientv3.Event) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.views[v.key] == v { // else it was dropped
		again = v.apply(events, time.Now())
		Notify(v.changed)
	}
	return again
}

func (f *follower) lost(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	message := Explain(err).Error()
	if f.stats.Lists > 0 {
		message = "the fleet may have changed since: " + message
	}
	if f.health.lose(message) {
		f.log.Warn("fleet: " + message)
		f.noteHealth()
	}
}

// found records that etcd has answered. The caller holds mu.
func (c *connection) found() {
	c.progressed.Store(true)
	c.regained("fleet: it is being followed")
}

// regained records that the sources are current. The caller holds mu.
func (f *follower) regained(message string) {
	if f.health.Current {
		return
	}
	f.health = Health{Current: true}
	f.log.Info(message)
	f.noteHealth()
}

// readPages reads all keys with a prefix, and returns the revision at which it read them.
func readPages(ctx context.Context, from store, prefix string, take func(*mvccpb.KeyValue)) (revision int64, err error) {
	key, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	limit := int64(pageSize)
	for more := true; more; {
		page, err := from.get(ctx, key, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(revision))
		if isTooLarge(err) && limit > 1 {
			limit /= 2
			continue
		}
		if errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
			return 0, errHistory
		}
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.GetRevision()
		}
		for _, kv := range page.Kvs {
			take(kv)
		}
		if more = page.More && len(page.Kvs) > 0; more {
			key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		}
	}
	return revision, nil
}
