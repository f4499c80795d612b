// Package supervise keeps launched plugins running: it runs the machine that decides what happens to one (package machine), and executes
// what that asks for. It also finds out whether a plugin that runs is well. What a process is, and where a plugin is registered, it is
// told.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
)

// Process is a process of a plugin. All methods may be called at once from several goroutines.
type Process interface {
	// About returns the process as the machine knows it.
	About() machine.Process
	// Wait blocks until the process has ended and nothing is left of it, and returns nil if that was a clean end; or until ctx ends.
	Wait(ctx context.Context) error
	// Terminate stops the process and blocks until it has exited. When ctx ends the process is killed.
	Terminate(ctx context.Context)
}

// Config is the configuration of a [Unit]. D is the type that describes the plugin.
type Config[D any] struct {
	// Launch starts a process of a generation. It may take its time; the end of ctx ends that, and the process. After an error that wraps a
	// [BlockedError] it is called again after the change.
	Launch func(ctx context.Context, generation machine.Ref, description D) (Process, error)
	// Ready blocks until a process is ready and returns nil, or an error if ctx ended, and calls refused each time that the process is
	// refused, with a [BlockedError] if every process is until something changes; and Follow, after that, tells of its health until ctx ends.
	// They are called for plugins that serve.
	Ready  func(ctx context.Context, p Process, refused func(error)) error
	Follow func(ctx context.Context, description D, p Process, found func(machine.HealthFound))
	// Needed reports whether a caller waits for a plugin that is started on demand. It is called with a lock of the Unit.
	Needed func() bool
	// Observe is called with each event, in order, with a lock of the Unit: it must not block or call the Unit.
	Observe func(machine.Event)
	// Pace is what it runs on.
	Pace Pace
}

// BlockedError is the error of a launch that fails in the same way, or of a process that is refused, until something changes.
type BlockedError struct {
	Err error
	// AwaitChange blocks until that has changed since the launch or the refusal, or ctx ends.
	AwaitChange func(ctx context.Context)
}

func (e *BlockedError) Error() string { return e.Err.Error() }

func (e *BlockedError) Unwrap() error { return e.Err }

// Pace is time, goroutines and chance. A simulation has its own.
type Pace interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) (stop func())
	Go(f func())
	Chance() float64
}

// Real is the pace of the machine that this runs on. Its goroutines are counted in a WaitGroup.
type Real struct{ *sync.WaitGroup }

// Now implements Pace.
func (Real) Now() time.Time { return time.Now() }

// AfterFunc implements Pace.
func (Real) AfterFunc(d time.Duration, f func()) (stop func()) {
	timer := time.AfterFunc(d, f)
	return func() { timer.Stop() }
}

// Chance implements Pace.
func (Real) Chance() float64 { return rand.Float64() }

// Unit is one plugin that is kept running. Its methods are safe for concurrent use, and none blocks.
type Unit[D any] struct {
	cfg Config[D]

	mu          sync.Mutex // guards what follows; held for short steps
	machine     machine.Machine
	description D
	held        map[machine.Ref]*held[D]
	timers      map[machine.Timer]func() // that stop them
	survivor    Process                  // the one that Survivor is about
	waiting     map[machine.Request]func(error)
	last        machine.Request
	hasty       bool // nothing that is being ended is waited for
}

// held is what is held for a generation.
type held[D any] struct {
	description D
	process     Process            // nil if none runs
	cancel      context.CancelFunc // of the launch, and then of the wait for the end
	unwatch     context.CancelFunc // nil if neither it nor what blocks it is watched
	blocked     *BlockedError      // that of the last launch, or of the last refusal after it; nil if it had none
	kill        context.CancelFunc // nil if it is not being terminated
}

// New returns a Unit that does nothing yet.
func New[D any](cfg Config[D]) *Unit[D] {
	return &Unit[D]{
		cfg: cfg, held: map[machine.Ref]*held[D]{}, timers: map[machine.Timer]func(){}, waiting: map[machine.Request]func(error){},
	}
}

// Configure gives the plugin a description. Changed says that a process of the one before has to be replaced. Done is called as by Start,
// with what became of that.
func (u *Unit[D]) Configure(description D, about machine.Description, changed bool, done func(error)) {
	u.ask(done, func(r machine.Request) machine.Input {
		u.description = description
		return machine.Configure{Description: about, Changed: changed, Request: r}
	})
}

// Tell passes an input to the machine and does not wait for the result.
func (u *Unit[D]) Tell(input machine.Input) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.step(input)
}

// Start asks for what its name says. Done is called once with what became of it, with a lock of the Unit. What is returned says that nobody
// waits for that any more.
func (u *Unit[D]) Start(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Start{Request: r} })
}

// Replace is like Start.
func (u *Unit[D]) Replace(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Replace{Request: r} })
}

// Stop is like Start.
func (u *Unit[D]) Stop(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Stop{Request: r} })
}

// Remove is like Start.
func (u *Unit[D]) Remove(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Remove{Request: r} })
}

// Demand starts a plugin that is started on demand. It is like Start.
func (u *Unit[D]) Demand(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Demand{Request: r} })
}

func (u *Unit[D]) ask(done func(error), input func(machine.Request) machine.Input) (withdraw func(error)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last++
	r := u.last
	u.waiting[r] = done
	u.step(input(r))
	return func(err error) { u.Tell(machine.Withdraw{Request: r, Err: err}) }
}

// Survivor offers a process that survived an earlier host, which is taken over or ended.
func (u *Unit[D]) Survivor(p Process) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.survivor = p
	u.step(machine.Survivor{Process: p.About()})
}

// Unfit stops a process, immediately if atOnce, and starts another one.
func (u *Unit[D]) Unfit(p Process, err error, atOnce bool) {
	u.about(p, func(ref machine.Ref) machine.Input { return machine.Unfit{Ref: ref, Err: err, AtOnce: atOnce} })
}

// Unneeded reports that a process has been idle for a while.
func (u *Unit[D]) Unneeded(p Process) {
	u.about(p, func(ref machine.Ref) machine.Input { return machine.Unneeded{Ref: ref} })
}

// about gives the machine an input about a process that has not ended.
func (u *Unit[D]) about(p Process, input func(machine.Ref) machine.Input) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for ref, h := range u.held {
		if h.process == p {
			u.step(input(ref))
			return
		}
	}
}

// Kill ends without patience what is being ended, now and later.
func (u *Unit[D]) Kill() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hasty = true
	for _, h := range u.held {
		if h.kill != nil {
			h.kill()
		}
	}
}

// Status describes the plugin.
func (u *Unit[D]) Status() machine.Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.machine.Status()
}

// Process returns the process that the plugin is at present; nil if it has none.
func (u *Unit[D]) Process() Process {
	u.mu.Lock()
	defer u.mu.Unlock()
	if h := u.held[u.machine.Current()]; h != nil {
		return h.process
	}
	return nil
}

// step gives the machine an input and executes what that leads to. mu is held.
func (u *Unit[D]) step(input machine.Input) {
	effects := u.machine.Step(machine.Moment{Now: u.cfg.Pace.Now(), Chance: u.cfg.Pace.Chance()}, input)
	for _, effect := range effects {
		u.execute(effect)
	}
}

func (u *Unit[D]) execute(effect machine.Effect) {
	switch e := effect.(type) {
	case machine.Launch:
		u.launch(e.Ref)
	case machine.Cancel:
		u.held[e.Ref].cancel()
	case machine.Adopt:
		u.adopt(e.Ref)
	case machine.Discard:
		p := u.survivor
		u.survivor = nil
		u.cfg.Pace.Go(func() { p.Terminate(context.Background()) })
	case machine.AwaitChange:
		u.awaitChange(e.Ref)
	case machine.Watch:
		u.watch(e.Ref)
	case machine.Unwatch:
		if h := u.held[e.Ref]; h != nil && h.unwatch != nil {
			h.unwatch()
			h.unwatch = nil
		}
	case machine.Terminate:
		u.terminate(e)
	case machine.Release:
		u.held[e.Ref].cancel()
		delete(u.held, e.Ref)
	case machine.SetTimer:
		u.setTimer(e)
	case machine.StopTimer:
		u.timers[e.Timer]()
		delete(u.timers, e.Timer)
	case machine.Emit:
		u.cfg.Observe(e.Event)
	case machine.Answer:
		done := u.waiting[e.Request]
		delete(u.waiting, e.Request)
		done(e.Err)
	}
}

// launch starts a process of a generation, whose description is that of its first launch.
func (u *Unit[D]) launch(ref machine.Ref) {
	h := u.hold(ref)
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	u.cfg.Pace.Go(func() {
		defer cancel()
		p, err := u.guarded(ctx, ref, h.description)
		blocked, isBlocked := errors.AsType[*BlockedError](err)
		started := machine.Launched{Ref: ref, Err: err, Blocked: isBlocked}
		if err == nil {
			started.Process = p.About()
		}
		u.mu.Lock()
		h.process, h.blocked = p, blocked
		u.step(started)
		u.mu.Unlock()
		if err == nil {
			u.await(context.WithoutCancel(ctx), ref, h, p)
		}
		u.tidy(ref)
	})
}

// growStack makes a goroutine's stack at once as large as a launch needs it. Else it is doubled and copied several times on the way to the
// fork, with all that is on it by then.
//
//go:noinline
func growStack(i int) byte { // the index keeps the compiler from doing without the room
	var room [14 << 10]byte
	return room[i]
}

// hold returns what is held for a generation, which begins with the present description.
func (u *Unit[D]) hold(ref machine.Ref) *held[D] {
	if u.held[ref] == nil {
		u.held[ref] = &held[D]{description: u.description}
	}
	return u.held[ref]
}

// guarded is Launch, whose panic and runtime.Goexit are errors.
func (u *Unit[D]) guarded(ctx context.Context, ref machine.Ref, description D) (p Process, err error) {
	err = callback.Call(func() (err error) {
		growStack(0)
		p, err = u.cfg.Launch(ctx, ref, description)
		return err
	})
	if failed, ok := errors.AsType[*callback.Error](err); ok {
		err = fmt.Errorf("what launches the plugin did not return: %w\n%s", failed, failed.Stack)
	}
	return p, err
}

func (u *Unit[D]) adopt(ref machine.Ref) {
	h := u.hold(ref)
	h.description, h.process, u.survivor = u.description, u.survivor, nil
	h.cancel = func() {} // until it is waited for, which looks whether it was released
	p := h.process
	u.cfg.Pace.Go(func() {
		u.await(context.Background(), ref, h, p)
		u.tidy(ref)
	})
}

// await waits for the end of a process, unless the process is released.
func (u *Unit[D]) await(ctx context.Context, ref machine.Ref, h *held[D], p Process) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u.mu.Lock()
	h.cancel = cancel
	released := u.held[ref] != h
	u.mu.Unlock()
	if released {
		return
	}
	err := p.Wait(ctx)
	if ctx.Err() != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	h.process = nil
	u.step(machine.Exited{Ref: ref, Err: err})
}

// tidy forgets a generation that is over.
func (u *Unit[D]) tidy(ref machine.Ref) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.machine.Knows(ref) {
		delete(u.held, ref)
	}
}

// awaitChange notifies the machine when what blocks a generation has changed.
func (u *Unit[D]) awaitChange(ref machine.Ref) {
	h := u.held[ref]
	ctx, cancel := context.WithCancel(context.Background()) //nolint:gosec // Unwatch calls it, which comes for each AwaitChange
	h.unwatch = cancel
	blocked := h.blocked
	u.cfg.Pace.Go(func() {
		if blocked.AwaitChange(ctx); ctx.Err() == nil {
			u.Tell(machine.Changed{Ref: ref})
		}
		u.tidy(ref)
	})
}

func (u *Unit[D]) watch(ref machine.Ref) {
	h := u.held[ref]
	ctx, cancel := context.WithCancel(context.Background()) //nolint:gosec // Unwatch calls it, which comes for each Watch
	h.unwatch = cancel
	p := h.process
	u.cfg.Pace.Go(func() {
		err := u.cfg.Ready(ctx, p, func(why error) {
			blocked, isBlocked := errors.AsType[*BlockedError](why)
			u.mu.Lock()
			defer u.mu.Unlock()
			if ctx.Err() == nil {
				h.blocked = blocked
				u.step(machine.Refused{Ref: ref, Err: why, Blocked: isBlocked})
			}
		})
		if err != nil {
			return
		}
		u.Tell(machine.Registered{Ref: ref})
		u.cfg.Follow(ctx, h.description, p, func(found machine.HealthFound) {
			if found.Ref = ref; ctx.Err() == nil {
				u.Tell(found)
			}
		})
	})
}

func (u *Unit[D]) terminate(e machine.Terminate) {
	h := u.held[e.Ref]
	ctx, cancel := context.WithCancel(context.Background())
	h.kill = cancel
	if e.AtOnce || u.hasty {
		cancel()
	}
	p := h.process
	u.cfg.Pace.Go(func() {
		defer cancel()
		p.Terminate(ctx)
	})
}

func (u *Unit[D]) setTimer(e machine.SetTimer) {
	if stop := u.timers[e.Timer]; stop != nil {
		stop()
	}
	set := false // true when the timer is the one in the map
	stop := u.cfg.Pace.AfterFunc(e.After, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if set {
			delete(u.timers, e.Timer)
			u.step(machine.Fired{Timer: e.Timer, Needed: u.cfg.Needed != nil && u.cfg.Needed()})
		}
	})
	set = true
	u.timers[e.Timer] = func() { set = false; stop() }
}
