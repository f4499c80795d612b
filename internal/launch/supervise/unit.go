// Package supervise keeps launched plugins running: a [Unit] runs the state machine of one plugin (package machine) and executes its
// effects, and [FollowHealth] watches the health of a process. It does not know how processes are started or plugins registered.
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
	"github.com/patchbay-dev/patchbay/plugin"
)

// Program starts the processes of a plugin with one configuration.
type Program interface {
	// Launch starts a process of a generation. It may block. When ctx is done before it returns, it stops the process. After an error that
	// wraps a [BlockedError], it is called again when AwaitChange has returned.
	Launch(ctx context.Context, generation machine.Ref) (Process, error)
}

// Process is a process of a plugin. Its methods may be called concurrently.
type Process interface {
	// About returns the process as the machine knows it.
	About() machine.Process
	// AwaitReady blocks until the process is ready and returns nil, or an error if ctx ended. It calls refused each time that the process
	// is refused, with a [BlockedError] if every process is refused until something changes. It is called for plugins that serve.
	AwaitReady(ctx context.Context, refused func(error)) error
	// FollowHealth calls found with the health of a process that serves and is ready, until ctx ends.
	FollowHealth(ctx context.Context, found func(machine.HealthFound))
	// Wait blocks until the process and all its descendants have exited, and returns nil after a clean exit; or until ctx ends.
	Wait(ctx context.Context) error
	// Terminate stops the process and blocks until it has exited. When ctx ends the process is killed.
	Terminate(ctx context.Context)
}

// Owner owns a [Unit]. Its methods are called while a lock of the Unit is held: they must not block or call the Unit.
type Owner interface {
	// Observe receives each event, in order.
	Observe(e plugin.Event)
	// Needed reports whether a caller waits for a plugin that is started on demand.
	Needed() bool
}

// BlockedError is the error of a launch or a registration that cannot succeed until something changes.
type BlockedError struct {
	Err error
	// AwaitChange blocks until it has changed since the launch or the refusal, or ctx is done.
	AwaitChange func(ctx context.Context)
}

func (e *BlockedError) Error() string { return e.Err.Error() }

func (e *BlockedError) Unwrap() error { return e.Err }

// Pace provides time, goroutines and random numbers. A simulation replaces it.
type Pace interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) (stop func())
	Go(f func())
	Chance() float64
}

// Real is the Pace outside simulations. Its goroutines are counted in a WaitGroup.
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

// Unit keeps one plugin running. Its methods do not block and are safe for concurrent use.
type Unit struct {
	owner Owner
	pace  Pace

	mu       sync.Mutex // guards the fields below; held for short steps
	machine  machine.Machine
	program  Program
	held     map[machine.Ref]*held
	timers   map[machine.Timer]func() // the functions stop the timers
	survivor Process                  // the argument of Survivor, during its step
	waiting  map[machine.Request]func(error)
	last     machine.Request
	killNow  bool // processes that are being terminated are killed immediately
}

// held has the resources of a generation.
type held struct {
	program Program
	process Process            // nil if no process runs
	cancel  context.CancelFunc // cancels the launch, or later the wait for the exit
	unwatch context.CancelFunc // stops watch or awaitChange; nil if neither runs
	blocked *BlockedError      // the error of the last launch, or of the last refusal after it; nil if that was not a BlockedError
	kill    context.CancelFunc // kills the process while it is being terminated; otherwise nil
}

// New returns a Unit that does nothing yet.
func New(owner Owner, pace Pace) *Unit {
	return &Unit{
		owner: owner, pace: pace,
		held: map[machine.Ref]*held{}, timers: map[machine.Timer]func(){}, waiting: map[machine.Request]func(error){},
	}
}

// Configure sets the program of the plugin and its description. If changed is set, a process of the previous program is replaced, and done
// is called with the result of the replacement, as by Start.
func (u *Unit) Configure(program Program, about machine.Description, changed bool, done func(error)) {
	u.ask(done, func(r machine.Request) machine.Input {
		u.program = program
		return machine.Configure{Description: about, Changed: changed, Request: r}
	})
}

// Tell passes an input to the machine and does not wait for the result.
func (u *Unit) Tell(input machine.Input) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.step(input)
}

// Start starts the plugin. done is called once with the result, while a lock of the Unit is held. A caller that stops waiting calls
// withdraw: then the error is the result.
func (u *Unit) Start(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Start{Request: r} })
}

// Replace replaces the process, or starts one if none runs. Otherwise it is like Start.
func (u *Unit) Replace(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Replace{Request: r} })
}

// Stop stops the plugin. Otherwise it is like Start.
func (u *Unit) Stop(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Stop{Request: r} })
}

// Remove stops the plugin for good. Otherwise it is like Start.
func (u *Unit) Remove(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Remove{Request: r} })
}

// Demand starts a plugin that is started on demand, for a caller that needs it. Otherwise it is like Start.
func (u *Unit) Demand(done func(error)) (withdraw func(error)) {
	return u.ask(done, func(r machine.Request) machine.Input { return machine.Demand{Request: r} })
}

func (u *Unit) ask(done func(error), input func(machine.Request) machine.Input) (withdraw func(error)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last++
	r := u.last
	u.waiting[r] = done
	u.step(input(r))
	return func(err error) { u.Tell(machine.Withdraw{Request: r, Err: err}) }
}

// Survivor adopts a process that survived an earlier host, or stops it.
func (u *Unit) Survivor(p Process) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.survivor = p
	u.step(machine.Survivor{Process: p.About()})
}

// Unfit stops a process and starts another one. If atOnce is set, the process is killed.
func (u *Unit) Unfit(p Process, err error, atOnce bool) {
	u.about(p, func(ref machine.Ref) machine.Input { return machine.Unfit{Ref: ref, Err: err, AtOnce: atOnce} })
}

// Unneeded reports that a process has been idle for a while.
func (u *Unit) Unneeded(p Process) {
	u.about(p, func(ref machine.Ref) machine.Input { return machine.Unneeded{Ref: ref} })
}

// about passes an input about a process to the machine, unless the process has ended.
func (u *Unit) about(p Process, input func(machine.Ref) machine.Input) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for ref, h := range u.held {
		if h.process == p {
			u.step(input(ref))
			return
		}
	}
}

// Kill kills all processes that are being terminated, and those that will be terminated later.
func (u *Unit) Kill() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.killNow = true
	for _, h := range u.held {
		if h.kill != nil {
			h.kill()
		}
	}
}

// Status returns the status of the plugin.
func (u *Unit) Status() plugin.LaunchStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.machine.Status()
}

// Process returns the current process of the plugin; nil if it has none.
func (u *Unit) Process() Process {
	u.mu.Lock()
	defer u.mu.Unlock()
	if h := u.held[u.machine.Current()]; h != nil {
		return h.process
	}
	return nil
}

// step passes an input to the machine and executes its effects. The caller holds mu.
func (u *Unit) step(input machine.Input) {
	effects := u.machine.Step(machine.Moment{Now: u.pace.Now(), Chance: u.pace.Chance()}, input)
	for _, effect := range effects {
		u.execute(effect)
	}
}

func (u *Unit) execute(effect machine.Effect) {
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
		u.pace.Go(func() { p.Terminate(context.Background()) })
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
		u.owner.Observe(e.Event)
	case machine.Answer:
		done := u.waiting[e.Request]
		delete(u.waiting, e.Request)
		done(e.Err)
	}
}

// launch starts a process of a generation, with the program of its first launch.
func (u *Unit) launch(ref machine.Ref) {
	h := u.hold(ref)
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	u.pace.Go(func() {
		defer cancel()
		p, err := guarded(ctx, ref, h.program)
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

// growStack grows a goroutine's stack in one step to the size that a launch needs. Otherwise it is doubled and copied several times on the
// way to the fork.
//
//go:noinline
func growStack(i int) byte { // the index keeps the compiler from removing the array
	var room [14 << 10]byte
	return room[i]
}

// hold returns the resources of a generation. A new generation gets the current program.
func (u *Unit) hold(ref machine.Ref) *held {
	if u.held[ref] == nil {
		u.held[ref] = &held{program: u.program}
	}
	return u.held[ref]
}

// guarded calls Launch, and returns an error if it panics or calls runtime.Goexit.
func guarded(ctx context.Context, ref machine.Ref, program Program) (p Process, err error) {
	err = callback.Call(func() (err error) {
		growStack(0)
		p, err = program.Launch(ctx, ref)
		return err
	})
	if failed, ok := errors.AsType[*callback.Error](err); ok {
		err = fmt.Errorf("what launches the plugin did not return: %w\n%s", failed, failed.Stack)
	}
	return p, err
}

func (u *Unit) adopt(ref machine.Ref) {
	h := u.hold(ref)
	h.program, h.process, u.survivor = u.program, u.survivor, nil
	h.cancel = func() {} // await replaces it, and checks whether the generation was released before that
	p := h.process
	u.pace.Go(func() {
		u.await(context.Background(), ref, h, p)
		u.tidy(ref)
	})
}

// await waits until a process has exited or is released.
func (u *Unit) await(ctx context.Context, ref machine.Ref, h *held, p Process) {
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

// tidy removes the resources of a generation that the machine does not know any more.
func (u *Unit) tidy(ref machine.Ref) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.machine.Knows(ref) {
		delete(u.held, ref)
	}
}

// awaitChange waits for the change after a BlockedError, and passes it to the machine.
func (u *Unit) awaitChange(ref machine.Ref) {
	h := u.held[ref]
	ctx, cancel := context.WithCancel(context.Background()) // called for Unwatch, which follows each AwaitChange
	h.unwatch = cancel
	blocked := h.blocked
	u.pace.Go(func() {
		if blocked.AwaitChange(ctx); ctx.Err() == nil {
			u.Tell(machine.Changed{Ref: ref})
		}
		u.tidy(ref)
	})
}

func (u *Unit) watch(ref machine.Ref) {
	h := u.held[ref]
	ctx, cancel := context.WithCancel(context.Background()) // called for Unwatch, which follows each Watch
	h.unwatch = cancel
	p := h.process
	u.pace.Go(func() {
		err := p.AwaitReady(ctx, func(why error) {
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
		p.FollowHealth(ctx, func(found machine.HealthFound) {
			if found.Ref = ref; ctx.Err() == nil {
				u.Tell(found)
			}
		})
	})
}

func (u *Unit) terminate(e machine.Terminate) {
	h := u.held[e.Ref]
	ctx, cancel := context.WithCancel(context.Background())
	h.kill = cancel
	if e.AtOnce || u.killNow {
		cancel()
	}
	p := h.process
	u.pace.Go(func() {
		defer cancel()
		p.Terminate(ctx)
	})
}

func (u *Unit) setTimer(e machine.SetTimer) {
	if stop := u.timers[e.Timer]; stop != nil {
		stop()
	}
	set := false // true when the timer is the one in the map
	stop := u.pace.AfterFunc(e.After, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if set {
			delete(u.timers, e.Timer)
			u.step(machine.Fired{Timer: e.Timer, Needed: u.owner.Needed()})
		}
	})
	set = true
	u.timers[e.Timer] = func() { set = false; stop() }
}
