package launcher

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/launch/output"
)

const (
	defaultStopTimeout  = 5 * time.Second
	defaultReadyTimeout = 30 * time.Second
)

// unit is one plugin to launch. It has one generation at a time, and two while one replaces the other.
type unit struct {
	launcher *Launcher
	name     string
	log      *output.Log
	// removed is closed when the unit is to end for good; it cuts a replacement short.
	removed    chan struct{}
	removeOnce sync.Once
	goneOnce   sync.Once
	// gone is closed when nothing of the unit is left. before is that of an earlier unit of the same name; nil if there was none.
	gone, before chan struct{}

	processes int // that it has or is about to have; guarded by Launcher.mu

	// op is held over one operation of start, stop, replace and remove.
	op sync.Mutex

	mu     sync.Mutex // guards what follows
	plugin Plugin
	// wanted: it was started and not stopped since. stopped: it was stopped and not started since.
	wanted, stopped bool
	current         *generation
	lives           int // that were begun, to name their sockets
	// replaceErr says why the last replacement failed, until the next one.
	replaceErr error
}

func newUnit(l *Launcher, p Plugin) *unit {
	return &unit{
		launcher: l, name: p.Name, plugin: p, removed: make(chan struct{}), gone: make(chan struct{}),
		log: output.New(output.Config{Name: p.Name, Handler: l.cfg.Output, Rate: p.LogRate}),
	}
}

// change gives the unit other details. It says whether a process has to be replaced for that.
func (u *unit) change(p Plugin) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.plugin.LogRate != p.LogRate {
		u.log.SetRate(p.LogRate)
		u.plugin.LogRate = p.LogRate // the process notices nothing
	}
	if u.plugin.same(p) {
		return false
	}
	u.plugin = p
	return u.wanted
}

func (u *unit) start() error {
	u.op.Lock()
	defer u.op.Unlock()
	return u.ensure()
}

// unlessStopped does with op held what nobody waits for, unless the plugin was stopped meanwhile. Its outcome shows in the status and in
// the events.
func (u *unit) unlessStopped(do func() error) {
	u.op.Lock()
	defer u.op.Unlock()
	u.mu.Lock()
	stopped := u.stopped
	u.mu.Unlock()
	if !stopped {
		_ = do()
	}
}

// ensure begins a generation if none goes on, and has a process run. op is held, as in all that follows.
func (u *unit) ensure() error {
	if g := u.generation(); g != nil && !g.over() {
		return g.start()
	}
	return u.begin()
}

// begin makes a new generation the current one, in the stead of one that is over, and waits until its first process has started.
func (u *unit) begin() error {
	if err := u.awaitTurn(); err != nil {
		return err
	}
	if old := u.generation(); old != nil {
		old.end()
	}
	g, err := u.newGeneration()
	if err != nil {
		return err
	}
	u.mu.Lock()
	u.current, u.wanted, u.stopped, u.replaceErr = g, true, false, nil
	u.mu.Unlock()
	return g.await(g.first)
}

func (u *unit) takesOver() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.plugin.Survive && !u.stopped
}

// takeOver begins the life of the process that survived an earlier launcher, unless that has begun or the process was ended meanwhile.
func (u *unit) takeOver() {
	u.unlessStopped(func() error {
		if !u.launcher.hasAdopted(u) {
			return nil
		}
		if g := u.generation(); g != nil && !g.over() {
			g.super.Start() // now, instead of after its pause
			return nil
		}
		return u.begin()
	})
}

// awaitTurn waits until an earlier unit of the same name is gone: two of them do not run at once.
func (u *unit) awaitTurn() error {
	if u.before == nil {
		return nil
	}
	select {
	case <-u.before:
		return nil
	case <-u.removed:
		return ErrClosed
	}
}

func (u *unit) stop() error {
	before := u.generation()
	running := before != nil && !before.over()
	if running {
		before.cancel() // a start that holds op may wait for its plugin to be met
	}
	u.op.Lock()
	defer u.op.Unlock()
	u.mu.Lock()
	u.wanted, u.stopped = false, true
	g, plugin := u.current, u.plugin
	u.mu.Unlock()
	if survivor := u.launcher.takeAdopted(u); survivor != nil {
		terminate(survivor, plugin.stopTimeout())
		if g == nil || g.over() {
			u.observe(EventStopped, "", "it was stopped")
		}
	}
	if running && g == before {
		g.end()
		u.observe(EventStopped, "", "it was stopped")
		return nil
	}
	u.endWith(g, "it was stopped")
	return nil
}

// endWith ends a generation, which may be over already or nil. Only the end of one that was not is an event.
func (u *unit) endWith(g *generation, reason string) {
	if g == nil {
		return
	}
	over := g.over()
	g.end() // also one that has failed waits to be ended
	if !over {
		u.observe(EventStopped, "", reason)
	}
}

// replace puts a new generation in the place of the current one: first the new one becomes ready, then the old one ends. Of one that does
// not serve there is nothing that could go over: it ends first.
func (u *unit) replace(ctx context.Context) error {
	u.op.Lock()
	defer u.op.Unlock()
	return u.exchange(ctx)
}

func (u *unit) exchange(ctx context.Context) error {
	old := u.generation()
	if old == nil || old.over() || !old.plugin.Serve {
		return u.begin()
	}
	next, err := u.newGeneration()
	if err == nil {
		err = u.awaitReady(ctx, next)
	}
	if err != nil {
		if next != nil {
			next.end()
		}
		err = fmt.Errorf("%w, the old one goes on: %w", ErrReplacement, err)
		u.mu.Lock()
		u.replaceErr = err
		u.mu.Unlock()
		u.observe(EventFailed, "", err.Error())
		return err
	}
	u.mu.Lock()
	u.current, u.wanted, u.stopped, u.replaceErr = next, true, false, nil
	u.mu.Unlock()
	u.observe(EventReplaced, next.socket(), "a new process is ready, the old one is told to go")
	old.end()
	return nil
}

func (u *unit) awaitReady(ctx context.Context, g *generation) error {
	u.mu.Lock()
	timeout := cmp.Or(u.plugin.ReadyTimeout, defaultReadyTimeout)
	u.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-g.ready:
		return nil
	case err := <-g.unready:
		return err
	case <-timer.C:
		return fmt.Errorf("it was not registered within %s", timeout)
	case <-u.removed:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (u *unit) remove() {
	u.removeOnce.Do(func() { close(u.removed) })
	u.op.Lock()
	defer u.op.Unlock()
	u.mu.Lock()
	u.wanted = false
	g, plugin := u.current, u.plugin
	u.mu.Unlock()
	if survivor := u.launcher.takeAdopted(u); survivor != nil && !u.launcher.closing() {
		terminate(survivor, plugin.stopTimeout())
	}
	u.endWith(g, "it is not to be launched any more")
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// A handler of the host that is stuck loses the rest.
	_ = u.log.Close(closing)
	u.goneOnce.Do(func() { close(u.gone) })
}

func (u *unit) generation() *generation {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.current
}

// output returns the log of the unit, or that of a process that an earlier launcher had started.
func (u *unit) output() *output.Log {
	if g := u.generation(); g != nil {
		if adopted := g.adoptedLog(); adopted != nil {
			return adopted
		}
	}
	return u.log
}

func (u *unit) status() Status {
	u.mu.Lock()
	g, replaceErr := u.current, u.replaceErr
	u.mu.Unlock()
	s := Status{Name: u.name, State: StateStopped}
	if g != nil {
		s = g.status()
	}
	if replaceErr != nil && s.LastError == "" {
		s.LastError = replaceErr.Error()
	}
	return s
}

func (u *unit) observe(kind EventKind, socket, message string) {
	u.launcher.cfg.Observe(Event{Time: time.Now(), Kind: kind, Name: u.name, Socket: socket, Message: message})
}

// State is what a launched plugin does.
type State string

// The states of a launched plugin.
const (
	// StateStarting: its process is being started, or runs and is not ready yet.
	StateStarting State = "starting"
	// StateRunning: it is ready: registered if it serves.
	StateRunning State = "running"
	// StateUnresponsive: it runs and does not answer health checks.
	StateUnresponsive State = "unresponsive"
	// StateBackoff: it ended and is started again at NextStart.
	StateBackoff State = "backoff"
	// StateFailed: it ended too often; Restart and Start begin anew.
	StateFailed State = "failed"
	// StateStopped: it was stopped, ended by itself and is not to be started again, or was never started.
	StateStopped State = "stopped"
)

// Status describes a launched plugin.
type Status struct {
	Name  string
	State State
	// Since is when it entered its state.
	Since time.Time
	// Health is what it says of itself through grpc.health.v1: "serving", "not-serving", "unresponsive", "not-offered", or "unknown".
	Health string
	// PID is its process; zero if it has none.
	PID int
	// Socket is where it serves; empty if it does not.
	Socket string
	// Restarts counts how often it was started again since it was last started or replaced by hand.
	Restarts int
	// NextStart is when it is started again; zero if that is not planned.
	NextStart time.Time
	// LastError says how its last life ended, or why its last replacement failed, with the last lines that it wrote to standard error.
	LastError string
}

// EventKind names what happened to a launched plugin. That a process was started or has ended is told by the host.
type EventKind string

// The kinds of events.
const (
	// EventFailed: it could not be started, ended too often, or a replacement did not become ready.
	EventFailed EventKind = "failed"
	// EventStopped: it was told to end, and has.
	EventStopped EventKind = "stopped"
	// EventReplaced: a new process of it is ready, and the old one is told to end.
	EventReplaced EventKind = "replaced"
	// EventUnresponsive: it does not answer health checks. EventResponsive: it does so again.
	EventUnresponsive EventKind = "unresponsive"
	EventResponsive   EventKind = "responsive"
	// EventUnhealthy: it says itself that it does not serve. EventHealthy: it does so again.
	EventUnhealthy EventKind = "unhealthy"
	EventHealthy   EventKind = "healthy"
)

// Event says what happened to a launched plugin.
type Event struct {
	Time   time.Time
	Kind   EventKind
	Name   string
	Socket string
	// Message explains the event in one line.
	Message string
}
