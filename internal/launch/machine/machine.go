// Package machine is the state machine of one launched plugin. It decides when a process is started, when it is ready, when another process
// replaces it, whether it is restarted after its exit, and when the plugin has failed. It has no goroutines, clock or I/O: a step maps an
// input and the time to effects, which package supervise executes.
package machine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// settled is the time after which a plugin that does not serve is ready, if it has not exited.
const settled = time.Second

// want is whether a plugin should run.
type want uint8

const (
	nothing want = iota // not started yet
	running
	stopped // by a request, and not started since
	removed // not configured any more, or the host is shutting down
)

// Machine is one launched plugin. It is used by one goroutine at a time. The zero value is a plugin without a description.
type Machine struct {
	// Entered is called with each transition, unless it is nil.
	Entered func(Ref, Transition)

	Moment
	desc    Description
	wanted  want
	last    Ref
	timers  map[Timer]bool
	out     []Effect
	history history
	// current is the plugin's generation, next will replace it, and leaving are the generations that are being stopped, oldest first.
	current, next *generation
	leaving       []*generation
	// queue has requests for a replacement during another replacement, and stops those that wait until no process runs.
	queue, stops []Request
	// failed is the error of the last replacement, at failedAt; nil if it has not failed.
	failed   error
	failedAt time.Time
}

// generation is a sequence of processes of a plugin; see [Phase].
type generation struct {
	ref   Ref
	desc  Description
	phase Phase
	since time.Time // when it entered its state
	begun time.Time // when its last start began
	// process is the running process; zero if none runs.
	process Process
	health  plugin.ServingStatus
	// err is the error of the last exit or start, unready that of the registration, unfit the reason why the process is being stopped.
	err, unready, unfit error
	blocking            bool      // no process can be registered until the cause of unready has changed
	readySince          time.Time // when its process became ready; zero if it is not ready
	next                time.Time // when it is started again
	reason              string    // why it is being stopped; may be empty
	starts, ready, ends []Request // requests that wait for its start, until it is ready, and for its end
}

// Step takes an input and returns its effects, which are valid until the next step.
func (m *Machine) Step(at Moment, input Input) []Effect {
	m.Moment = at
	switch in := input.(type) {
	case Configure:
		m.configure(in)
	case Start:
		m.start(in.Request)
	case Replace:
		m.restart(in.Request)
	case Stop:
		m.stopAll(in.Request, stopped, ByStop, errStopped, "it was stopped")
	case Remove:
		m.stopAll(in.Request, removed, ByStop, errStopped, "it is not to be launched any more")
	case Close:
		m.stopAll(0, removed, ByClose, cmp.Or(in.Err, errStopped), "the host is shutting down")
	case Withdraw:
		m.withdraw(in)
	case Survivor:
		m.survivor(in.Process)
	case Offer:
		m.offer()
	case Demand:
		m.demand(in.Request)
	case SocketLost:
		if g := m.current; g != nil && g.phase == Serving && (g.process.Socket == in.Socket || g.ref == in.Process) {
			m.failing(g, errSocketRemoved)
			m.enter(g, Lost, BySocketLoss)
			m.restart(0)
		}
	default:
		if about, ok := input.(interface{ of() Ref }); ok {
			if g := m.find(about.of()); g != nil {
				m.stepGeneration(g, input)
			}
		}
	}
	for len(m.queue) > 0 && !m.replacing() {
		first := m.queue[0]
		m.queue = m.queue[1:]
		m.restart(first)
	}
	out := m.out
	m.out = out[:0]
	for i, effect := range out {
		if e, ok := effect.(Emit); ok {
			e.State = m.Status().State
			out[i] = e
		}
	}
	return out
}

// stepGeneration handles an input about one generation.
func (m *Machine) stepGeneration(g *generation, input Input) {
	unready := g.phase == Started || g.phase == Adopted
	switch in := input.(type) {
	case Launched:
		m.launched(g, in)
	case Registered:
		if unready {
			m.becomeReady(g, Serving, ByReadiness)
		}
	case Refused:
		if unready {
			g.unready, g.blocking = in.Err, in.Blocked // it may still be registered
			m.failing(g, in.Err)
			m.failNext(g, in.Err)
		}
	case Exited:
		m.exited(g, in.Err)
	case HealthFound:
		m.healthFound(g, in)
	case Unneeded:
		m.unneeded(g)
	case Unfit:
		switch {
		case g == m.next:
			m.failNext(g, in.Err)
		case g.phase == Started || g.phase == Serving:
			m.fail(g, in.Err, ByUnfitness, in.AtOnce)
		}
	case Changed:
		if g.phase == Blocked {
			m.launch(g, ByChange)
		}
	case Fired:
		if m.timers[in.Timer] {
			delete(m.timers, in.Timer)
			m.fired(g, in)
		}
	}
}

// find returns the generation with a Ref; nil if it is over.
func (m *Machine) find(ref Ref) *generation {
	for _, g := range append(m.leaving[:len(m.leaving):len(m.leaving)], m.current, m.next) {
		if g != nil && g.ref == ref {
			return g
		}
	}
	return nil
}

func (m *Machine) configure(in Configure) {
	m.desc = in.WithDefaults()
	switch {
	case m.wanted == removed:
		m.wanted = nothing
	case in.Changed && m.current != nil && m.current.phase == Idle && m.desc.onDemand():
		m.current.desc, m.failed = m.desc, nil
		m.stopTimer(m.current, Recover)
		m.history = history{}
	case in.Changed && m.wanted == running:
		m.restart(in.Request)
		return
	}
	m.answer(in.Request, nil)
}

func (m *Machine) start(r Request) {
	m.wanted = running
	g := m.current
	switch {
	case g == nil || g.phase == Stopping || g.phase == Over || g.phase == Surviving:
		m.begin(ByStart, r)
	case g.phase == BackingOff || g.phase == GivenUp || g.phase == Blocked:
		m.history, m.failed = history{}, nil
		g.starts = append(g.starts, r)
		m.launch(g, ByStart)
	case g.phase == Idle:
		m.wake(g, r)
	case g.phase == Wanted || g.phase == Starting:
		g.starts = append(g.starts, r)
	default:
		m.answer(r, nil)
	}
}

// wake starts an idle generation, after all earlier processes have ended.
func (m *Machine) wake(g *generation, r Request) {
	g.starts = append(g.starts, r)
	if len(m.leaving) > 0 {
		m.enter(g, Wanted, ByDemand)
		return
	}
	m.launch(g, ByDemand)
}

// restart replaces the process. If the plugin serves, the old process is stopped when the new one is ready. A plugin that does not serve
// has no calls to hand over, so its old process is stopped first.
func (m *Machine) restart(r Request) {
	old := m.current
	switch {
	case m.replacing():
		m.queue = append(m.queue, r)
	case old == nil || old.phase.rests() || old.phase == Stopping || !old.desc.Serves:
		m.wanted = running
		m.begin(ByRestart, r)
	case m.desc.Upgrade == plugin.UpgradeRecreate:
		m.wanted = running
		if old.phase != BackingOff {
			m.emit(plugin.EventReplacing, old, "the old process is told to go, a new one is started when it has ended")
		}
		m.begin(ByRestart, 0)
		m.current.ready = append(m.current.ready, r)
	default:
		m.wanted = running
		m.next = m.generation()
		m.next.ready = []Request{r}
		m.launch(m.next, ByRestart)
	}
}

// replacing reports whether an old process is being stopped for a new one, or the new one is not ready yet.
func (m *Machine) replacing() bool {
	return m.next != nil || len(m.leaving) > 0 || m.current != nil && len(m.current.ready) > 0
}

// begin makes a new generation the current one, and waits for the end of the one before.
func (m *Machine) begin(cause Cause, r Request) {
	m.history, m.failed = history{}, nil // a request resets the counts
	old := m.current
	if old != nil && !old.phase.rests() {
		m.leaving = append(m.leaving, old)
	}
	m.current = m.generation()
	m.current.starts = []Request{r}
	if old != nil {
		if old.phase != Stopping { // its requests wait for the new generation
			m.current.starts, m.current.ready = slices.Concat(old.starts, m.current.starts), old.ready
			old.starts, old.ready = nil, nil
		}
		m.end(old, Stopping, cause)
	}
	if len(m.leaving) > 0 {
		m.enter(m.current, Wanted, cause)
		return
	}
	m.launch(m.current, cause)
}

func (m *Machine) generation() *generation {
	m.last++
	return &generation{ref: m.last, desc: m.desc, since: m.Now}
}

// stopAll stops all processes, except one that survives the host.
func (m *Machine) stopAll(r Request, w want, cause Cause, err error, reason string) {
	m.wanted, m.failed, m.history.trouble = w, nil, trouble{}
	m.answerAll(&m.queue, err)
	if m.next != nil {
		m.drop(err, cause)
	}
	switch g := m.current; {
	case g == nil:
	case cause == ByClose && g.phase.runs() && g.desc.Survives:
		m.enter(g, Surviving, ByClose)
		m.do(Unwatch{g.ref}, Release{g.ref})
		m.finish(g, err)
	default:
		if (!g.phase.rests() || g.phase == Idle) && g.phase != Wanted && g.phase != Stopping {
			g.reason = reason
		}
		m.end(g, Stopping, cause)
	}
	m.stops = append(m.stops, r)
	m.answerStops()
}

func (m *Machine) withdraw(in Withdraw) {
	if m.next != nil && slices.Contains(m.next.ready, in.Request) {
		m.failNext(m.next, in.Err)
		return
	}
	waiting := []*[]Request{&m.queue}
	for _, g := range append(m.leaving[:len(m.leaving):len(m.leaving)], m.current) {
		if g != nil {
			waiting = append(waiting, &g.starts, &g.ready, &g.ends)
		}
	}
	for _, list := range waiting {
		if i := slices.Index(*list, in.Request); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
			m.answer(in.Request, in.Err)
		}
	}
}

// survivor adopts a process unless another process may conflict with it or the plugin was stopped.
func (m *Machine) survivor(p Process) {
	g := m.current
	resting := g == nil || g.phase.rests() && g.phase != Idle || g.phase == BackingOff
	if !m.desc.Survives || m.wanted >= stopped || m.next != nil || len(m.leaving) > 0 || !resting {
		m.do(Discard{})
		return
	}
	if g == nil || g.phase == Over || g.phase == Surviving {
		g = m.generation()
		m.current = g
	}
	m.wanted = running
	g.desc, g.begun, g.readySince, g.process = m.desc, m.Now, time.Time{}, p
	m.enter(g, Adopted, BySurvivor)
	m.do(Adopt{g.ref})
	m.emit(plugin.EventAdopted, g, fmt.Sprintf("process %d, which an earlier host had started, was taken over", p.PID))
	m.started(g)
	if p.Identity != m.desc.Identity {
		m.restart(0)
	}
}

func (m *Machine) offer() {
	if g := m.current; g == nil || g.phase == Over || g.phase == Stopping {
		m.becomeIdle()
		m.emit(plugin.EventIdle, m.current, "it is started when somebody needs it")
	}
}

// becomeIdle starts an idle generation. A generation that is being stopped is moved to leaving.
func (m *Machine) becomeIdle() {
	if g := m.current; g != nil && g.phase == Stopping {
		m.leaving = append(m.leaving, g)
	}
	m.wanted = running
	m.newIdle()
}

// newIdle makes a new idle generation the current one.
func (m *Machine) newIdle() {
	old := m.current
	m.current = m.generation()
	if old != nil {
		m.current.err = old.err
	}
	m.enter(m.current, Idle, ByOffer)
	m.startRecovery(m.current)
}

func (m *Machine) demand(r Request) {
	g := m.current
	switch {
	case m.wanted == removed:
		m.answer(r, errRemoved)
	case m.wanted == stopped:
		m.answer(r, errNotStarted)
	case g == nil || g.phase == Over || g.phase == Stopping:
		m.becomeIdle()
		m.wake(m.current, r)
	case g.phase == Idle:
		m.wake(g, r)
	case g.phase == Wanted || g.phase == Starting || g.phase == BackingOff || g.phase == Failing:
		g.starts = append(g.starts, r)
	case g.phase == GivenUp || g.phase == Blocked:
		m.answer(r, g.err)
	default:
		m.answer(r, nil)
	}
}

// unneeded stops a process without calls, unless it is being replaced. A process that is not registered yet stays: it may have been started
// to learn what the plugin announces.
func (m *Machine) unneeded(g *generation) {
	if g != m.current || !g.desc.onDemand() || m.replacing() || g.phase != Serving {
		return
	}
	m.leaving = append(m.leaving, g)
	m.newIdle()
	m.emit(plugin.EventIdle, g, "nobody needs it, so its process is told to go")
	m.end(g, Stopping, ByIdleness)
}

// Status returns the status of the plugin.
func (m *Machine) Status() plugin.LaunchStatus {
	s := plugin.LaunchStatus{State: plugin.StateStopped, ServingStatus: plugin.ServingStatusUnknown}
	if g := m.current; g != nil {
		s = plugin.LaunchStatus{
			State: g.state(), Since: g.since, PID: g.process.PID, Socket: g.process.Socket,
			ServingStatus: cmp.Or(g.health, plugin.ServingStatusUnknown), Restarts: m.history.restarts, NextStart: g.next,
			FailingSince: m.history.trouble.since, Replacing: m.next != nil,
		}
		if m.timers[Timer{g.ref, Recover}] {
			s.HealthyFrom = m.history.trouble.until
		}
		if err := cmp.Or(m.history.trouble.last, g.unready, g.err); err != nil {
			s.LastError = err.Error()
		}
	}
	if m.failed != nil {
		s.ReplacementError, s.ReplacementFailed = m.failed.Error(), m.failedAt
	}
	return s
}

func (g *generation) state() plugin.State {
	if g.health == plugin.ServingStatusUnresponsive && (g.phase == Ready || g.phase == Serving) {
		return plugin.StateUnresponsive
	}
	return phases[g.phase].shown
}

// enter changes the phase of a generation, as [Table] permits.
func (m *Machine) enter(g *generation, phase Phase, cause Cause) {
	before := g.state()
	taken := Transition{From: g.phase, On: cause, To: phase}
	g.phase = phase
	switch taken.From {
	case Started, Adopted:
		m.stopTimer(g, StartBy)
	case Blocked:
		m.do(Unwatch{g.ref})
	case Ready, Serving, Idle:
		m.stopTimer(g, Recover)
	default: // the other phases have no timer or watch of their own
	}
	if g.state() != before || taken.From == 0 {
		g.since = m.Now
	}
	if m.Entered != nil {
		m.Entered(g.ref, taken)
	}
}

func (m *Machine) do(effects ...Effect) { m.out = append(m.out, effects...) }

func (m *Machine) answer(r Request, err error) {
	if r != 0 {
		m.do(Answer{r, err})
	}
}

func (m *Machine) answerAll(waiting *[]Request, err error) {
	for _, r := range *waiting {
		m.answer(r, err)
	}
	*waiting = nil
}

func (m *Machine) emit(kind plugin.EventKind, g *generation, message string) {
	m.do(Emit{plugin.Event{Time: m.Now, Kind: kind, SocketPath: g.process.Socket, Message: message}})
}

func (m *Machine) setTimer(g *generation, kind TimerKind, after time.Duration) {
	if m.timers == nil {
		m.timers = map[Timer]bool{}
	}
	t := Timer{g.ref, kind}
	m.timers[t] = true
	m.do(SetTimer{t, after})
}

func (m *Machine) stopTimer(g *generation, kind TimerKind) {
	if t := (Timer{g.ref, kind}); m.timers[t] {
		delete(m.timers, t)
		m.do(StopTimer{t})
	}
}

// Current returns the current generation; zero if there was none yet.
func (m *Machine) Current() Ref {
	if m.current == nil {
		return 0
	}
	return m.current.ref
}

// Knows reports whether the machine has a generation. It drops generations that are over and were replaced.
func (m *Machine) Knows(ref Ref) bool { return m.find(ref) != nil }
