package reconciler

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/trust"
)

// Reconciler makes the actual state of the world match the desired one. Its methods are safe for concurrent use.
type Reconciler struct {
	cfg Config
	log *slog.Logger
	// wake tells Run that inbox holds something.
	wake chan struct{}
	// running counts what Run has to wait for.
	running sync.WaitGroup
	// limits are the timeouts in force.
	limits atomic.Pointer[timeoutTable]

	// mu guards everything below and all instances and lanes. It is held for short steps that never block: no handler, plugin
	// or disk is called with it. Config.Observe, Staged.Publish, Registry.Confirm, Registry.Unreachable and the cache are, so their
	// locks come after it.
	mu sync.Mutex
	// inbox holds what timers, exit watches and callers ask of the reconciler; Run executes it.
	inbox    []func(context.Context)
	stopped  bool
	handlers map[string]*handler
	lanes    map[laneKey]*lane
	// sockets and appearances are the instances whose sockets exist.
	sockets     map[string]*instance
	appearances map[uint64]*instance
	// restored are the instances from before a restart whose sockets have not been seen yet.
	restored map[cache.SocketID]*instance
	// remembered are the instances from before a restart, lastRank is the highest rank among them. Both stay as they are.
	remembered map[laneKey][]remembered
	lastRank   uint64
	// synced: all sockets that were there at the start have been seen.
	synced bool
	// unlinked are instances whose sockets have just been removed and which are still watched; the function ends that.
	unlinked map[*instance]func()
	// robbed are those of them that were found to live on without their sockets; refusals are the last ones of names.
	robbed, refusals remnants
	// queue holds the instances that wait for a slot; free counts the slots.
	queue []*instance
	free  int
}

// handler is one registration of a handler: the same handler registered twice is two of them.
type handler struct{ cache.PluginHandler }

// New returns a Reconciler. It does nothing before [Reconciler.Run], but knows what is restored.
func New(cfg Config) *Reconciler {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Event) {}
	}
	if cfg.Refused == nil {
		cfg.Refused = func(trust.Reason) {}
	}
	if cfg.Withdrawn == nil {
		cfg.Withdrawn = func(string) error { return nil }
	}
	if cfg.Source == nil {
		cfg.Source = func(string) Source { return SourceDiscovered }
	}
	if cfg.Registry == nil {
		cfg.Registry = noRegistry{}
	}
	cfg.Bounds = Bounds{Text: cmp.Or(cfg.Bounds.Text, 4096), Versions: cmp.Or(cfg.Bounds.Versions, 64)}
	r := &Reconciler{
		cfg:         cfg,
		log:         cfg.Logger,
		wake:        make(chan struct{}, 1),
		handlers:    map[string]*handler{},
		lanes:       map[laneKey]*lane{},
		sockets:     map[string]*instance{},
		appearances: map[uint64]*instance{},
		restored:    map[cache.SocketID]*instance{},
		remembered:  map[laneKey][]remembered{},
		lastRank:    rankStep,
		unlinked:    map[*instance]func(){},
		free:        cmp.Or(cfg.Walks, defaultWalks),
	}
	r.SetTimeouts(cfg.Timeouts, cfg.TypeTimeouts)
	r.restore(cfg.Restored)
	return r
}

// timeouts returns those for a plugin type; the empty type is one that is not known yet.
func (r *Reconciler) timeouts(ptype string) Timeouts {
	limits := r.limits.Load()
	if ptype != "" {
		return limits.byType[ptype].or(limits.all)
	}
	longest := limits.all
	for _, t := range limits.byType {
		longest = longest.max(t)
	}
	return longest
}

// SetTimeouts takes the place of Config.Timeouts and Config.TypeTimeouts, for every step that begins from now on. Neither is changed
// afterwards.
func (r *Reconciler) SetTimeouts(all Timeouts, byType map[string]Timeouts) {
	r.limits.Store(&timeoutTable{all: all.or(defaultTimeouts), byType: byType})
}

// SetHandler makes h the handler for a plugin type. Plugins of that type which wait for one register at once; those of a
// previous handler are deregistered there and registered with h.
func (r *Reconciler) SetHandler(ptype string, h cache.PluginHandler) {
	r.changeHandler(ptype, &handler{h})
}

// RemoveHandler removes the handler for a plugin type. Its plugins are deregistered.
func (r *Reconciler) RemoveHandler(ptype string) {
	r.changeHandler(ptype, nil)
}

// Reconsider tries at once every plugin that waits for its next attempt, and has its back-off begin anew: what judges plugins has changed.
func (r *Reconciler) Reconsider() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.post(func(ctx context.Context) {
		for in := range r.instances() {
			// One that is out of reach waits for its end, and not for an attempt.
			if in.retry != nil && (in.state != StateUnreachable || !in.recorded) {
				in.attempts = 0
				r.ask(ctx, in)
			}
		}
	})
}

func (r *Reconciler) changeHandler(ptype string, h *handler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h == nil {
		delete(r.handlers, ptype)
	} else {
		r.handlers[ptype] = h
	}
	r.post(func(ctx context.Context) {
		for key, l := range r.lanes {
			if key.ptype != ptype {
				continue
			}
			for _, in := range l.members {
				if in.unclaimed && !in.gone {
					r.ask(ctx, in)
				}
			}
			r.kick(ctx, l)
		}
	})
}

// Synced states that the desired state of the world is complete: every socket that exists is in it. Restored instances whose sockets
// are not are given up.
func (r *Reconciler) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.post(func(ctx context.Context) {
		r.synced = true
		for id, in := range r.restored {
			delete(r.restored, id)
			r.went(ctx, in, "its socket did not survive the restart")
		}
	})
}

// Check returns nil as soon as the reconciler's loop answers, whatever its lanes are waiting for, and an error when ctx ends before that.
func (r *Reconciler) Check(ctx context.Context) error {
	answered := make(chan struct{})
	go func() { // the lock may be what does not come free
		r.mu.Lock()
		defer r.mu.Unlock()
		r.post(func(context.Context) { close(answered) })
	}()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the reconciler does not answer: %w", ctx.Err())
	}
}

// Run reconciles until ctx ends. It returns when everything it started has ended, which includes handler calls that are
// running. Plugins are not deregistered. Run may be called once.
func (r *Reconciler) Run(ctx context.Context) error {
	changes := r.cfg.Desired.Changes()
	defer changes.Close()
	for {
		select {
		case <-ctx.Done():
			r.stop()
			return nil
		case <-changes.C():
		case <-r.wake:
		}
		r.mu.Lock()
		// Before anything else, so that what is asked of the reconciler finds it up to date.
		r.apply(ctx, changes.Take())
		for len(r.inbox) > 0 {
			do := r.inbox[0]
			r.inbox = r.inbox[1:]
			do(ctx)
		}
		r.mu.Unlock()
	}
}

// stop ends everything that runs and waits for it.
func (r *Reconciler) stop() {
	r.mu.Lock()
	r.stopped = true
	for in := range r.instances() {
		in.rest()
	}
	for in := range r.unlinked {
		r.unwatchUnlinked(in)
	}
	r.mu.Unlock()
	r.running.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for in := range r.instances() {
		in.rest()
		if conn := in.takeConn(); conn != nil {
			r.closeConn(conn)
		}
	}
}

// instances are all instances: those whose sockets exist, and those that are gone and still in their lane. mu is held.
func (r *Reconciler) instances() iter.Seq[*instance] {
	return func(yield func(*instance) bool) {
		for _, in := range r.appearances {
			if !yield(in) {
				return
			}
		}
		for _, l := range r.lanes {
			for _, in := range l.members {
				if in.gone && !yield(in) {
					return
				}
			}
		}
	}
}

// post has Run execute do with mu held. mu is held.
func (r *Reconciler) post(do func(context.Context)) {
	if r.stopped {
		return
	}
	r.inbox = append(r.inbox, do)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// after posts do when d has passed. mu is held.
func (r *Reconciler) after(d time.Duration, do func(context.Context)) *time.Timer {
	return time.AfterFunc(d, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.post(do)
	})
}

// spawn runs do in a goroutine that Run waits for. mu is held.
func (r *Reconciler) spawn(do func()) {
	if !r.stopped {
		r.running.Go(do)
	}
}

// observe tells what happened to an instance. mu is held.
func (r *Reconciler) observe(kind EventKind, in *instance, message string) {
	known := in.announced
	if known.Type == "" {
		known = in.refused
	}
	r.cfg.Observe(Event{
		Time: time.Now(), Kind: kind,
		Type: known.Type, Name: known.Name, Instance: in.id,
		Endpoint: in.endpoint(), SocketPath: in.info.SocketPath,
		Message: message,
	})
}

func (r *Reconciler) closeConn(conn Conn) {
	if err := conn.Close(); err != nil {
		r.log.Debug("cannot close a registration connection", "error", err)
	}
}

// call runs one call of a handler and turns a panic into an error.
func (r *Reconciler) call(what string, do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.log.Error("handler panicked", "call", what, "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("the handler panicked in %s: %v", what, v)
		}
	}()
	return do()
}
