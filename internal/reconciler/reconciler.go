// Package reconciler makes the actual state of the world match the desired one: it asks each plugin socket for its type and name, calls the
// handler in the documented order, records the plugin in the registry, notifies the plugin, and undoes all of this when the socket is
// removed or stops accepting.
//
// Decisions depend on the present state and not on a queue of past changes (docs/adr/0002). Sockets are contacted concurrently; the calls
// after that run in one lane for each plugin type and name, one at a time. The package does not watch the file system, as pipeline does,
// and does not store anything, as the [Registry] does.
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

const defaultSlots = 64

// Reconciler makes the actual state of the world match the desired one. Its methods are safe for concurrent use.
type Reconciler struct {
	cfg Config
	log *slog.Logger
	// wake signals that inbox is not empty.
	wake chan struct{}
	pace clock.Pace
	// persists is true if there is a Registry, whose Stage may block on the disk.
	persists bool
	timeouts atomic.Pointer[timeoutTable]

	// mu guards the fields below. It is not held during calls of handlers, plugins or the disk. It is held during calls of Config.Observe,
	// Staged.Publish, Registry.Confirm, Registry.Unreachable, Registry.Reserve and the cache, so their locks are acquired after it.
	mu      sync.Mutex
	machine *machine.Machine
	initial []machine.Effect // the effects of starting the machine, which Run executes
	changes *cache.Changes   // of the desired state; nil before Run
	stopped bool
	// inbox holds the inputs of timers, watches and callers for the machine.
	inbox []machine.Input
	// checks are closed by Run in its next iteration.
	checks []chan struct{}
	// handlers has the current handlers, and earlier ones that a lane still uses, by number.
	handlers    map[int]cache.PluginHandler
	lastHandler int
	resources   map[machine.Ref]*resources
	timers      map[machine.Timer]*timer
	unsaved     map[plugin.Name]*unsaved
	// queue, retries and saved hold the jobs that wait for one of the slots: for a first attempt, for another attempt, or to continue after
	// being saved. free is the number of free slots, and dispatched counts the calls of nextJob.
	queue, retries, saved   []*job
	slots, free, dispatched int
	// saves are the jobs that wait to be saved; nil if no goroutine saves. From manySaves jobs on, that goroutine waits for more of them
	// before it saves; stopGathering ends this wait.
	saves         []*job
	manySaves     int
	stopGathering func()
	// unanswered counts the attempts that wait for an answer without a slot.
	unanswered int
}

// New returns a Reconciler, which lists the restored instances and does nothing else before [Reconciler.Run]. It panics if cfg has no
// Desired or no Transport, or is not valid.
func New(cfg Config) *Reconciler { return newAt(cfg, clock.Real()) }

// newAt is New with another clock, for simulations.
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
	persists := cfg.Registry != nil
	if !persists {
		cfg.Registry = noRegistry{}
	}
	r := &Reconciler{
		cfg:           cfg,
		log:           cfg.Logger,
		pace:          at,
		persists:      persists,
		wake:          make(chan struct{}, 1),
		handlers:      map[int]cache.PluginHandler{},
		resources:     map[machine.Ref]*resources{},
		timers:        map[machine.Timer]*timer{},
		unsaved:       map[plugin.Name]*unsaved{},
		slots:         cmp.Or(cfg.Slots, defaultSlots),
		stopGathering: func() {},
		manySaves:     manySaves,
	}
	r.free = r.slots
	_ = r.SetTimeouts(cfg.Timeouts, cfg.TypeTimeouts) // Validate has checked them
	r.machine = &machine.Machine{
		Admits: cfg.Admit != nil, Trust: cfg.Trust, IgnoreUnhandled: cfg.IgnoreUnhandled, Bounds: cfg.Bounds,
		UnreachableGrace: cfg.UnreachableGrace, NameGrace: cfg.NameGrace,
	}
	for _, effect := range r.machine.Start(r.moment(), cfg.Restored, cfg.Names) {
		if emit, ok := effect.(machine.Emit); ok {
			cfg.Observe(emit.Event)
			continue
		}
		r.initial = append(r.initial, effect)
	}
	return r
}

func (r *Reconciler) moment() machine.Moment {
	// Events of transitions cost 4 µs and 600 bytes for each plugin, and are rarely logged.
	passing := r.cfg.OnTransition != nil && r.log.Enabled(context.Background(), slog.LevelDebug)
	return machine.Moment{Now: r.pace.Now(), Chance: r.pace.Chance(), Passing: passing}
}

// timeoutsOf returns the timeouts of a plugin type, and for the empty type, which stands for an unknown one, the longest of all types.
func (r *Reconciler) timeoutsOf(ptype string) plugin.Timeouts {
	table := r.timeouts.Load()
	if ptype != "" {
		return withDefaults(table.byType[ptype], table.all)
	}
	all := table.all
	for _, t := range table.byType {
		all = longest(all, t)
	}
	return all
}

// SetTimeouts replaces Config.Timeouts and Config.TypeTimeouts for all later steps. It returns the error of [CheckTimeouts], and then
// changes nothing.
func (r *Reconciler) SetTimeouts(all plugin.Timeouts, byType map[string]plugin.Timeouts) error {
	if err := CheckTimeouts(all, byType); err != nil {
		return err
	}
	r.timeouts.Store(&timeoutTable{all: withDefaults(all, defaultTimeouts), byType: maps.Clone(byType)})
	return nil
}

// SetHandler makes h the handler for a plugin type. Plugins that wait for a handler of the type are registered immediately. The plugins of
// an earlier handler are deregistered from it and registered with h. SetHandler panics if h is nil or ptype is not a plugin type.
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
func (r *Reconciler) RemoveHandler(ptype string) { r.send(machine.HandlerSet{Type: ptype}) }

// Reconsider immediately retries every plugin that waits for its next attempt, and resets its back-off. Call it after the rules have
// changed.
func (r *Reconciler) Reconsider() { r.send(machine.Urged{}) }

// Retry immediately retries the instances of one plugin that wait for their next attempt, and resets their back-off. It reports whether
// there were any. The type is the one that the plugin announced, or one of its roles.
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

// ReleaseName ends the reservation of a name, if there is one, and immediately retries the plugins that were refused because of it. It
// blocks until that is saved. ctx bounds the wait for the state machine, not the save that follows, which takes as long as the disk.
func (r *Reconciler) ReleaseName(ctx context.Context, name plugin.Name) error {
	r.send(machine.Released{Key: name})
	if err := r.Check(ctx); err != nil {
		return err
	}
	return r.cfg.Registry.SaveReservation(name)
}

// MarkComplete states that the desired state of the world has every existing socket. Restored instances whose sockets are missing are
// removed.
func (r *Reconciler) MarkComplete() { r.send(machine.Complete{}) }

// Plugins returns the status of every instance that has a socket, of every restored instance that is still being checked, and of
// instances that serve although their sockets were removed, at most 64 for each user and 1,024 in total. They are sorted by type and name,
// newest instance first.
func (r *Reconciler) Plugins() []plugin.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Plugins(func(plugin.Name) bool { return true })
}

// PluginsNamed is [Reconciler.Plugins] for the plugins of any type that have a name.
func (r *Reconciler) PluginsNamed(name string) []plugin.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Plugins(func(k plugin.Name) bool { return k.Name == name })
}

// Refusals returns the last refusal of each name that has not been registered since and that no present plugin announces. The state is
// "refused", and LastError is the reason. Refusals are sorted by type and name, newest first. The newest 64 of each user, and 1,024 in
// total, are kept in memory.
func (r *Reconciler) Refusals() []plugin.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Refusals()
}

// Check blocks until the loop of Run answers, and returns an error if ctx ends first. Calls in progress do not delay the answer.
func (r *Reconciler) Check(ctx context.Context) error {
	answered := make(chan struct{})
	go func() { // in case mu is never released
		r.mu.Lock()
		defer r.mu.Unlock()
		r.checks = append(r.checks, answered)
		r.signal()
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

// Run reconciles until ctx ends. It returns after all its goroutines have ended, including calls of handlers. It does not deregister
// plugins. A second call returns an error.
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
		r.processInputs(ctx)
	}
}

// begin executes the initial effects and returns the changes of the desired state; nil if it was called before.
func (r *Reconciler) begin(ctx context.Context) *cache.Changes {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes != nil {
		return nil
	}
	r.changes = r.cfg.Desired.Changes()
	r.execute(ctx, r.initial, nil)
	r.initial = nil
	return r.changes
}

// processInputs passes all changes and inputs to the machine, and answers checks.
func (r *Reconciler) processInputs(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drain(ctx)
	for _, answered := range r.checks {
		close(answered)
	}
	r.checks = nil
}

// changed returns the machine's input for changes: it adds how each new plugin came to the host, and why each socket was withdrawn.
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

// stop stops timers and watches, waits for all goroutines, and releases the remaining resources.
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
			// The registration was not completed, so the next start must not restore it.
			if err := res.staged.Discard(); err != nil {
				r.log.Error("cannot undo a registration", "error", err)
			}
		}
	}
}

// send passes an input to Run.
func (r *Reconciler) send(in machine.Input) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.post(in)
}

// post is send for callers that hold mu.
func (r *Reconciler) post(in machine.Input) {
	if !r.stopped {
		r.inbox = append(r.inbox, in)
		r.signal()
	}
}

func (r *Reconciler) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// step passes the earlier inputs and then in to the machine, and executes the effects. If in is the result of a job, that job takes over
// the first call among the effects. mu is held.
func (r *Reconciler) step(ctx context.Context, in machine.Input, done *job) {
	r.drain(ctx)
	if !r.stopped && ctx.Err() == nil {
		r.execute(ctx, r.machine.Step(r.moment(), in), done)
	}
}

// drain passes the changes of the desired state and then the inbox to the machine. An input such as [machine.Complete] is about changes
// that precede it. mu is held.
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
