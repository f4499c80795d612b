// Package reconciler makes the actual state of the world match the desired one: it asks each plugin socket for its type and name, calls the
// handler in the documented order, records the plugin in the registry, notifies the plugin, and undoes all of this when the socket is
// removed or stops accepting.
//
// It acts on present state (docs/adr/0002): sockets are contacted independently of each other; everything after that runs in one lane per
// plugin type and name, and a lane looks at what is true now, not at a queue of past changes. It does not watch the file system (package
// pluginwatcher does) or persist state (the registry does). It reaches the registry, the plugins and its observers through three small
// interfaces: Registry, Transport and Config.Observe.
package reconciler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/discover/clock"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

const defaultWalks = 64

// Reconciler makes the actual state of the world match the desired one. Its methods are safe for concurrent use.
type Reconciler struct {
	cfg Config
	log *slog.Logger
	// wake tells Run that inbox holds something.
	wake chan struct{}
	pace clock.Pace
	// keeps says that saving may take its time.
	keeps bool
	// limits are the timeouts in force.
	limits atomic.Pointer[timeoutTable]

	// mu guards everything below. It is held for short steps that never block: no handler, plugin or disk is called with it. Config.Observe,
	// Staged.Publish, Registry.Confirm, Registry.Unreachable, Registry.Reserve and the cache are, so their locks come after it.
	mu      sync.Mutex
	machine *machine.Machine
	early   []machine.Effect // of the machine's beginning, until Run
	changes *cache.Changes   // of the desired state; from Run on
	stopped bool
	// inbox holds what timers, watches and callers say; Run gives it to the machine.
	inbox []machine.Input
	// checks are closed when Run gets there.
	checks []chan struct{}
	// handlers are the present ones, and those before that a lane still has, by number.
	handlers    map[int]cache.PluginHandler
	lastHandler int
	resources   map[machine.Ref]*resources
	timers      map[machine.Timer]*timer
	unsaved     map[plugin.Name]*unsaved
	// queue, again and saved hold what waits for a slot: to begin with, to be tried again, or after it was saved; free counts the slots that
	// nobody has, and taken how often one was free.
	queue, again, saved []*job
	slots, free, taken  int
	// saves are the jobs that wait for the one that is about to save or saves; nil if nobody does. It waits for more if they are manySaves;
	// gathered tells it not to.
	saves     []*job
	manySaves int
	gathered  func()
	// unanswered counts the attempts that wait for an answer and have given their slots back. It changes with mu held.
	unanswered atomic.Int64
}

// New returns a Reconciler. It does nothing before [Reconciler.Run], but knows what is restored. It panics if the Config has no Desired or
// no Transport, or is not valid.
func New(cfg Config) *Reconciler { return newAt(cfg, clock.Real()) }

// newAt is New for a simulation, which has a pace of its own.
func newAt(cfg Config, at clock.Pace) *Reconciler {
	if cfg.Desired == nil || cfg.Transport == nil {
		panic("reconciler: Config.Desired or Config.Transport is nil")
	}
	if err := cfg.Validate(); err != nil {
		panic("reconciler: " + err.Error())
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(plugin.Event) {}
	}
	if cfg.Refused == nil {
		cfg.Refused = func(trust.Reason) {}
	}
	keeps := cfg.Registry != nil
	if !keeps {
		cfg.Registry = noRegistry{}
	}
	r := &Reconciler{
		cfg:       cfg,
		log:       cfg.Logger,
		pace:      at,
		keeps:     keeps,
		wake:      make(chan struct{}, 1),
		handlers:  map[int]cache.PluginHandler{},
		resources: map[machine.Ref]*resources{},
		timers:    map[machine.Timer]*timer{},
		unsaved:   map[plugin.Name]*unsaved{},
		slots:     cmp.Or(cfg.Walks, defaultWalks),
		gathered:  func() {},
		manySaves: manySaves,
	}
	r.free = r.slots
	_ = r.SetTimeouts(cfg.Timeouts, cfg.TypeTimeouts) // which are valid
	r.machine = &machine.Machine{
		Admits: cfg.Admit != nil, Trust: cfg.Trust, IgnoreUnhandled: cfg.IgnoreUnhandled, Bounds: cfg.Bounds,
		UnreachableGrace: cfg.UnreachableGrace, NameGrace: cfg.NameGrace,
	}
	for _, effect := range r.machine.Start(r.moment(), cfg.Restored, cfg.Names) {
		if emit, ok := effect.(machine.Emit); ok {
			cfg.Observe(emit.Event)
			continue
		}
		r.early = append(r.early, effect)
	}
	return r
}

func (r *Reconciler) moment() machine.Moment {
	// To tell of each state costs a plugin 4 µs and 600 bytes, and mostly nobody asks.
	passing := r.cfg.Passed != nil && r.log.Enabled(context.Background(), slog.LevelDebug)
	return machine.Moment{Now: r.pace.Now(), Chance: r.pace.Chance(), Passing: passing}
}

// timeouts returns those for a plugin type; the empty type is one that is not known yet.
func (r *Reconciler) timeouts(ptype string) plugin.Timeouts {
	limits := r.limits.Load()
	if ptype != "" {
		return withDefaults(limits.byType[ptype], limits.all)
	}
	all := limits.all
	for _, t := range limits.byType {
		all = longest(all, t)
	}
	return all
}

// SetTimeouts replaces Config.Timeouts and Config.TypeTimeouts for every step that begins from now on. With an error nothing changes; see
// [CheckTimeouts].
func (r *Reconciler) SetTimeouts(all plugin.Timeouts, byType map[string]plugin.Timeouts) error {
	if err := CheckTimeouts(all, byType); err != nil {
		return err
	}
	r.limits.Store(&timeoutTable{all: withDefaults(all, defaultTimeouts), byType: maps.Clone(byType)})
	return nil
}

// SetHandler makes h the handler for a plugin type. Plugins of that type that wait for a handler are registered at once. If there was
// a handler before, its plugins are deregistered from it and registered with h. It panics if h is nil or ptype is not a plugin type.
func (r *Reconciler) SetHandler(ptype string, h cache.PluginHandler) {
	if h == nil || !untrusted.IsType(ptype) {
		panic(fmt.Sprintf("reconciler: the handler of type %q is nil, or the type %s", ptype, untrusted.TypeSyntax))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastHandler++
	r.handlers[r.lastHandler] = h
	r.post(machine.HandlerSet{Type: ptype, Handler: r.lastHandler})
}

// RemoveHandler removes the handler for a plugin type. Its plugins are deregistered.
func (r *Reconciler) RemoveHandler(ptype string) { r.say(machine.HandlerSet{Type: ptype}) }

// Reconsider immediately retries every plugin that waits for its next attempt, and resets its back-off. Call it when the rules have
// changed.
func (r *Reconciler) Reconsider() { r.say(machine.Urged{}) }

// Retry immediately retries the instances of one plugin that wait, and resets their back-off. It reports whether there were any. The type
// is the one that the plugin announced, or a role of it.
func (r *Reconciler) Retry(ptype, name string) (waited bool) {
	key := plugin.Name{Type: ptype, Name: name}
	r.mu.Lock()
	defer r.mu.Unlock()
	waited = r.machine.Waits(key)
	if waited {
		r.post(machine.Urged{Key: key})
	}
	return waited
}

// Reservation returns the reservation of a name, if it is reserved and no plugin of that name is registered.
func (r *Reconciler) Reservation(name plugin.Name) (reservation plugin.Reservation, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Reservation(name)
}

// ReleaseName ends the reservation of a name, if there is one, and immediately retries plugins that were refused it. It blocks until that
// is durable. ctx bounds the wait for the state machine, not the save that follows, which takes as long as the disk.
func (r *Reconciler) ReleaseName(ctx context.Context, name plugin.Name) error {
	r.say(machine.Released{Key: name})
	if err := r.Check(ctx); err != nil {
		return err
	}
	return r.cfg.Registry.SaveReservation(name)
}

// Synced states that the desired state of the world is complete: every socket that exists is in it. Restored instances whose sockets are
// missing are given up.
func (r *Reconciler) Synced() { r.say(machine.Complete{}) }

// Plugins describes every instance whose socket exists, every restored one that is not settled yet, and those that still serve although
// their sockets were removed, at most 64 of each user and 1,024 in all, sorted by type and name, the newest instance of each first.
func (r *Reconciler) Plugins() []plugin.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Plugins(func(plugin.Name) bool { return true })
}

// PluginsNamed is [Reconciler.Plugins] for one name, of any type. Its cost grows with the number of other plugins only by a glance at each.
func (r *Reconciler) PluginsNamed(name string) []plugin.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Plugins(func(k plugin.Name) bool { return k.Name == name })
}

// Refusals describes the last refusal of each name that has not been registered since and whose plugin is gone or now announces something
// else: each with the state "refused" and the reason as its LastError. They are sorted by type and name, the newest of each first. At
// most 64 are kept for each user and 1,024 in all, the newest, in memory.
func (r *Reconciler) Refusals() []plugin.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Refusals()
}

// Check returns nil as soon as the reconciler's loop answers, whatever its lanes are waiting for, and an error when ctx ends before that.
func (r *Reconciler) Check(ctx context.Context) error {
	answered := make(chan struct{})
	go func() { // the lock may be what does not come free
		r.mu.Lock()
		defer r.mu.Unlock()
		r.checks = append(r.checks, answered)
		r.rouse()
	}()
	if ctx.Err() == nil {
		select {
		case <-answered:
			return nil
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("the reconciler does not answer: %w", ctx.Err())
}

// Run reconciles until ctx ends. It returns when everything it started has ended, which includes handler calls that are
// running. Plugins are not deregistered. Run may be called once: an error says that it was called before.
func (r *Reconciler) Run(ctx context.Context) error {
	changes := r.begin(ctx)
	if changes == nil {
		return errors.New("cannot run the reconciler: Run was called before; create another Reconciler")
	}
	defer changes.Close()
	for {
		select {
		case <-ctx.Done():
			r.stop()
			return nil
		case <-changes.C():
		case <-r.wake:
		}
		r.turn(ctx)
	}
}

// begin executes what the machine began with, and returns the changes of the desired state; nil if it was called before.
func (r *Reconciler) begin(ctx context.Context) *cache.Changes {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes != nil {
		return nil
	}
	r.changes = r.cfg.Desired.Changes()
	r.execute(ctx, r.early, nil)
	r.early = nil
	return r.changes
}

// turn gives the machine all that is there for it.
func (r *Reconciler) turn(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drain(ctx)
	for _, answered := range r.checks {
		close(answered)
	}
	r.checks = nil
}

// changed adds to changes what the machine cannot know.
func (r *Reconciler) changed(changes []cache.Change) machine.Changed {
	changed := make(machine.Changed, len(changes))
	for i, c := range changes {
		changed[i].Change = c
		if c.Info != nil {
			changed[i].Source = r.cfg.Transport.Source(c.Info.SocketPath)
		} else {
			changed[i].Withdrawn = r.failure(r.cfg.Transport.Withdrawn(c.Path))
		}
	}
	return changed
}

// stop ends everything that runs, waits for it, and lets go of what is left.
func (r *Reconciler) stop() {
	r.mu.Lock()
	r.stopped = true
	for _, timer := range r.timers {
		timer.stop()
	}
	for _, res := range r.resources {
		res.unwatch()
	}
	r.mu.Unlock()
	r.pace.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range slices.Sorted(maps.Keys(r.resources)) {
		res := r.resources[ref]
		res.unwatch()
		r.closeConn(res)
		if res.staged != nil {
			// What is not told and announced is not registered, and must not be remembered.
			if err := res.staged.Discard(); err != nil {
				r.log.Error("cannot undo a registration", "error", err)
			}
		}
	}
}

// say is post for those who do not have mu.
func (r *Reconciler) say(in machine.Input) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.post(in)
}

// post has Run give an input to the machine. mu is held.
func (r *Reconciler) post(in machine.Input) {
	if !r.stopped {
		r.inbox = append(r.inbox, in)
		r.rouse()
	}
}

func (r *Reconciler) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// step gives the machine an input, after those that came before it, and executes the effects. The first call among them is left to the
// job whose result the input is, if there is one. mu is held.
func (r *Reconciler) step(ctx context.Context, in machine.Input, done *job) {
	r.drain(ctx)
	if !r.stopped && ctx.Err() == nil {
		r.execute(ctx, r.machine.Step(r.moment(), in), done)
	}
}

// drain gives the machine what waits for it: first the changes of the desired state, so that what is said of that, as that it is complete,
// is not heard before. mu is held.
func (r *Reconciler) drain(ctx context.Context) {
	if r.stopped || ctx.Err() != nil {
		return
	}
	if changed := r.changed(r.changes.Take()); len(changed) > 0 {
		r.execute(ctx, r.machine.Step(r.moment(), changed), nil)
	}
	for len(r.inbox) > 0 && !r.stopped && ctx.Err() == nil {
		in := r.inbox[0]
		r.inbox = r.inbox[1:]
		r.execute(ctx, r.machine.Step(r.moment(), in), nil)
	}
}

// spawn runs do in a goroutine that Run waits for. mu is held.
func (r *Reconciler) spawn(do func()) {
	if !r.stopped {
		r.pace.Go(do)
	}
}

type noRegistry struct{}

func (noRegistry) Stage(instances []plugin.Instance) []Stage {
	return slices.Repeat([]Stage{{Staged: noStaged{}}}, len(instances))
}
func (noRegistry) Remove(string, string, string) error { return nil }
func (noRegistry) Confirm(string, string, string)      {}
func (noRegistry) Unreachable(_, _, _ string, _ error) {}
func (noRegistry) Reserve(plugin.Reservation)          {}
func (noRegistry) SaveReservation(plugin.Name) error   { return nil }

type noStaged struct{}

func (noStaged) Publish()       {}
func (noStaged) Discard() error { return nil }
