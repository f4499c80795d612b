package machine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

func (m *Machine) launch(g *generation, cause Cause) {
	m.stopTimer(g, Pause)
	g.begun, g.readySince, g.next, g.unready, g.unfit, g.health = m.Now, time.Time{}, time.Time{}, nil, nil, ""
	m.enter(g, Starting, cause)
	m.do(Launch{g.ref})
}

func (m *Machine) launched(g *generation, in Launched) {
	switch {
	case in.Err == nil:
		g.process = in.Process
		if g.phase != Starting { // it was stopped before the start was complete
			m.do(Terminate{Ref: g.ref})
			return
		}
		m.history.told = ""
		m.enter(g, Started, ByLaunch)
		m.started(g)
	case g.phase == Starting && errors.Is(in.Err, syscall.ETXTBSY):
		m.postpone(g, in.Err)
	case g.phase == Starting && in.Blocked && g != m.next && g.desc.restarts(in.Err):
		m.blocked(g, ByLaunch, in.Err)
	case g.phase == Starting:
		m.ended(g, ByLaunch, in.Err)
	default:
		m.over(g, ByLaunch)
	}
}

// busyPause is the pause before the next start if the program is open for writing. There is no event when the last writer closes it.
const busyPause = 100 * time.Millisecond

// postpone repeats a start that failed because the program is still open for writing, as while it is being installed. That is no restart,
// and requests for the start keep waiting.
func (m *Machine) postpone(g *generation, err error) {
	m.enter(g, BackingOff, ByLaunch)
	g.unready, g.next = err, m.Now.Add(busyPause)
	m.setTimer(g, Pause, busyPause)
	if g == m.next && !m.timers[Timer{g.ref, StartBy}] {
		m.setTimer(g, StartBy, g.desc.StartTimeout)
	}
	if !m.history.repeats(err) {
		m.emit(plugin.EventBusy, g, fmt.Sprintf("its program is open for writing, and is started when it is closed: %v", err))
	}
}

// started follows a process until it is ready.
func (m *Machine) started(g *generation) {
	m.stopTimer(g, Pause)
	g.next, g.health = time.Time{}, ""
	m.answerAll(&g.starts, nil)
	if g.desc.Serves {
		m.do(Watch{g.ref})
		m.setTimer(g, StartBy, g.desc.StartTimeout)
		return
	}
	m.setTimer(g, Settle, settled)
}

func (m *Machine) becomeReady(g *generation, phase Phase, cause Cause) {
	g.unready, g.blocking, g.readySince = nil, false, m.Now
	m.enter(g, phase, cause)
	how := "it is registered"
	if phase == Ready {
		how = fmt.Sprintf("it has run for %v", settled)
	}
	m.emit(plugin.EventReady, g, how)
	if g == m.next {
		m.replace()
		return
	}
	m.answerAll(&g.ready, nil)
	m.startRecovery(g)
}

// replace makes the next generation the current one and stops the old one.
func (m *Machine) replace() {
	old := m.current
	m.current, m.next = m.next, nil
	m.history, m.failed = history{}, nil
	m.emit(plugin.EventReplaced, m.current, "a new process is ready, the old one is told to go")
	m.answerAll(&old.starts, nil) // a process runs
	if old.phase >= Idle {
		m.answerAll(&m.current.ready, nil)
		return
	}
	old.ends, m.current.ready = append(old.ends, m.current.ready...), nil
	m.leaving = append(m.leaving, old)
	m.end(old, Replaced, ByReplacement)
}

// unfulfilled answers requests that wait until the current generation is ready, when its process has ended before that.
func (m *Machine) unfulfilled(g *generation, err error) {
	m.answerAll(&g.ready, fmt.Errorf("%w: %w", plugin.ErrReplacement, err))
}

// failNext gives up a generation that is to replace the current one, which stays as it is.
func (m *Machine) failNext(g *generation, err error) {
	if g != m.next {
		return
	}
	outcome := fmt.Errorf("%w: %w", plugin.ErrReplacement, err)
	if m.current.phase != Lost { // otherwise the plugin is failing
		m.failed, m.failedAt = outcome, m.Now
	}
	if old := m.current.phase; old.runs() && old != Lost {
		outcome = fmt.Errorf("%w, the old one keeps running: %w", plugin.ErrReplacement, err)
	}
	m.do(Emit{plugin.Event{Time: m.Now, Kind: plugin.EventFailed, Message: outcome.Error()}})
	m.drop(outcome, ByReplacement)
	if old := m.current; old.phase == Lost {
		m.fail(old, fmt.Errorf("%w: %w", errUnlinked, err), ByReplacement, false)
	}
}

// drop ends the next generation, and keeps the current one.
func (m *Machine) drop(err error, cause Cause) {
	g := m.next
	m.next = nil
	m.answerAll(&g.ready, err)
	if g.phase != Over {
		m.leaving = append(m.leaving, g)
		m.end(g, Stopping, cause)
	}
}

// end stops a generation that has not ended.
func (m *Machine) end(g *generation, phase Phase, cause Cause) {
	switch {
	case g.phase == Starting:
		m.enter(g, phase, cause)
		m.do(Cancel{g.ref})
	case g.phase.runs():
		m.stopTimer(g, Settle)
		m.do(Unwatch{g.ref})
		m.enter(g, phase, cause)
		m.do(Terminate{Ref: g.ref})
	case g.phase == Failing:
		m.enter(g, phase, cause) // it is being stopped already
	case slices.Contains(waiting, g.phase):
		m.over(g, cause)
	}
}

// fail stops an unfit process. The plugin is started again.
func (m *Machine) fail(g *generation, err error, cause Cause, atOnce bool) {
	m.stopTimer(g, Settle)
	m.do(Unwatch{g.ref})
	g.unfit = err
	m.enter(g, Failing, cause)
	m.do(Terminate{g.ref, atOnce})
}

func (m *Machine) exited(g *generation, err error) {
	m.stopTimer(g, Settle)
	if g.phase.runs() {
		m.do(Unwatch{g.ref})
	}
	g.process, g.health = Process{}, ""
	switch {
	case g.phase == Failing:
		m.ended(g, ByExit, g.unfit)
	case g.phase.runs() && g.blocking:
		m.ended(g, ByExit, fmt.Errorf("%w; then its process ended: %w", g.unready, cmp.Or(err, errClean)))
	case g.phase.runs():
		m.ended(g, ByExit, err)
	case g.phase == Stopping || g.phase == Replaced:
		m.over(g, ByExit)
	}
}

// ended decides whether a plugin is started again after a process that ended by itself, or a start that failed.
func (m *Machine) ended(g *generation, cause Cause, err error) {
	blocked := g.blocking
	g.err, g.unready, g.blocking = err, nil, false
	isEarly := g.desc.Serves && g.readySince.IsZero() || g.desc.Restart.Policy == plugin.RestartAlways && g.lasted(m.Now) < g.desc.Healthy
	if err != nil || isEarly {
		m.failing(g, cmp.Or(err, errClean))
	}
	if g == m.next {
		ready := g.ready
		g.ready = nil
		m.over(g, cause)
		g.ready = ready
		m.failNext(g, cmp.Or(err, errEndedEarly))
		return
	}
	repeated := cause == ByLaunch && m.history.repeats(err)
	m.answerAll(&g.starts, err)
	if !g.desc.restarts(err) {
		m.unfulfilled(g, cmp.Or(err, errEndedEarly))
		m.reportEnd(g, cause, err)
		if err == nil && !isEarly && !m.history.trouble.since.IsZero() {
			m.recovered(g)
		}
		m.over(g, cause)
		return
	}
	if blocked {
		m.blocked(g, cause, err)
		return
	}
	pause, tooMany := m.history.ended(g.desc, m.Moment, g.lasted(m.Now))
	if tooMany != "" {
		g.err = fmt.Errorf("%s: %w", tooMany, cmp.Or(err, errClean))
		m.failing(g, g.err)
		m.unfulfilled(g, g.err)
		m.enter(g, GivenUp, cause)
		m.emit(plugin.EventFailed, g, g.err.Error())
		return
	}
	m.unfulfilled(g, fmt.Errorf("%w; restarting in %v", cmp.Or(err, errEndedEarly), pause.Round(time.Millisecond)))
	m.enter(g, BackingOff, cause)
	g.next = m.Now.Add(pause)
	m.setTimer(g, Pause, pause)
	if (pause > 0 || cause == ByLaunch) && !repeated {
		m.emit(plugin.EventBackoff, g, fmt.Sprintf("%v; restarting in %v", cmp.Or(err, errClean), pause.Round(time.Millisecond)))
	}
}

// reportEnd emits the event of an end after which the policy does not start the plugin again, and no replacement is starting.
func (m *Machine) reportEnd(g *generation, cause Cause, err error) {
	switch {
	case cause == ByLaunch:
		m.emit(plugin.EventFailed, g, err.Error())
	case m.next != nil:
	case err != nil:
		m.emit(plugin.EventFailed, g, fmt.Sprintf("%v; its restart policy does not start it again", err))
	default:
		m.emit(plugin.EventStopped, g, "it ended by itself, without an error; its restart policy does not start it again")
	}
}

// lasted returns how long the process of a generation has run; zero if it was never ready.
func (g *generation) lasted(now time.Time) time.Duration {
	if g.readySince.IsZero() {
		return 0
	}
	return max(1, now.Sub(g.begun))
}

// blocked moves a generation to the phase Blocked, in which it waits for a change, because no start can succeed before that.
func (m *Machine) blocked(g *generation, cause Cause, err error) {
	g.err = err
	m.failing(g, err)
	m.answerAll(&g.starts, err)
	m.unfulfilled(g, err)
	m.enter(g, Blocked, cause)
	m.do(AwaitChange{g.ref})
	m.emit(plugin.EventFailed, g, err.Error())
}

func (m *Machine) fired(g *generation, in Fired) {
	switch kind := in.Kind; {
	case kind == Settle && (g.phase == Started || g.phase == Adopted):
		m.becomeReady(g, Ready, ByTimer)
	case kind == StartBy && (g.phase == Started || g.phase == Adopted || g == m.next):
		m.late(g)
	case kind == Recover:
		m.recovered(g)
	case kind != Pause || g.phase != BackingOff:
	case g.desc.onDemand() && !in.Needed && !g.isAwaited() && g != m.next:
		if m.over(g, ByTimer); g == m.current {
			m.newIdle()
			m.emit(plugin.EventIdle, m.current, "nobody needs it, so it is not restarted")
		}
	default:
		m.launch(g, ByTimer)
	}
}

// isAwaited reports whether a request waits for a process of the generation.
func (g *generation) isAwaited() bool {
	return slices.ContainsFunc(slices.Concat(g.starts, g.ready), func(r Request) bool { return r != 0 })
}

// late stops a process that is not ready in time, unless it survived an earlier host.
func (m *Machine) late(g *generation) {
	err := fmt.Errorf("it was not registered within its startTimeout, %v", g.desc.StartTimeout)
	if g.unready != nil {
		err = fmt.Errorf("%w: %w", err, g.unready)
	}
	switch {
	case g == m.next:
		m.failNext(g, err)
	case g.phase == Adopted: // it is not stopped: somebody may be using it
		m.failing(g, err)
		m.emit(plugin.EventFailed, g, err.Error())
	default:
		m.fail(g, err, ByUnfitness, false)
	}
}

// over ends a generation: it has no process and will not start one.
func (m *Machine) over(g *generation, cause Cause) {
	m.stopTimer(g, Pause)
	m.stopTimer(g, StartBy)
	g.next = time.Time{}
	m.enter(g, Over, cause)
	if g.reason != "" {
		m.emit(plugin.EventStopped, g, g.reason)
	}
	m.finish(g, errStopped)
	m.leaving = slices.DeleteFunc(m.leaving, func(o *generation) bool { return o == g })
	switch {
	case g == m.current && m.next != nil: // it does not replace the current one any more
		m.current, m.next, m.failed = m.next, nil, nil
	case len(m.leaving) == 0 && m.current != nil && m.current.phase == Wanted:
		m.launch(m.current, ByTurn)
	}
	m.answerStops()
}

// finish answers the requests that waited for a generation that has stopped, or was released.
func (m *Machine) finish(g *generation, err error) {
	m.answerAll(&g.starts, err)
	m.answerAll(&g.ready, cmp.Or(g.err, err))
	m.answerAll(&g.ends, nil)
}

// answerStops answers requests that wait until all processes have ended.
func (m *Machine) answerStops() {
	if len(m.leaving) > 0 || m.current != nil && m.current.phase == Stopping {
		return
	}
	m.answerAll(&m.stops, nil)
}

func (m *Machine) healthFound(g *generation, in HealthFound) {
	if g.phase != Serving {
		return
	}
	before := g.health
	g.health = in.State
	if in.State == plugin.ServingStatusUnresponsive || before == plugin.ServingStatusUnresponsive {
		g.since = m.Now
	}
	defer m.startRecovery(g)
	switch {
	case in.State == plugin.ServingStatusUnresponsive:
		err := fmt.Errorf("it does not answer health checks: %w", in.Err)
		m.failing(g, err)
		m.emit(plugin.EventUnresponsive, g, err.Error())
		if g.desc.Restart.Unresponsive {
			m.fail(g, fmt.Errorf("the plugin is unresponsive: %w", in.Err), ByUnfitness, false)
		}
	case in.State == plugin.ServingStatusNotServing:
		if before == plugin.ServingStatusUnresponsive {
			m.emit(plugin.EventResponsive, g, "it answers health checks again")
		}
		err := fmt.Errorf("it says that it does not serve: %w", cmp.Or(in.Err, errNotServing))
		m.failing(g, err)
		m.emit(plugin.EventUnhealthy, g, err.Error())
	case before == plugin.ServingStatusUnresponsive:
		m.emit(plugin.EventResponsive, g, "it answers health checks again")
	case before == plugin.ServingStatusNotServing:
		m.emit(plugin.EventHealthy, g, "it says that it serves again")
	}
}

// failing records a failure of the current generation. The plugin needs attention until it has recovered.
func (m *Machine) failing(g *generation, err error) {
	if g == m.next {
		return // the failure of a replacement is in failed
	}
	m.stopTimer(g, Recover)
	m.history.trouble = trouble{since: cmp.Or(m.history.trouble.since, m.Now), last: err}
}

// startRecovery starts the time after which a plugin that has failed is healthy again, if it is idle, or ready and healthy now. A process
// that ends without an error does not extend the time.
func (m *Machine) startRecovery(g *generation) {
	fit := (g.phase == Ready || g.phase == Serving || g.phase == Idle) && !g.health.FailsHealthChecks()
	if !fit || m.history.trouble.since.IsZero() || m.timers[Timer{g.ref, Recover}] {
		return
	}
	t := &m.history.trouble
	t.until = cmp.Or(t.until, m.Now.Add(g.desc.Restart.Window))
	m.setTimer(g, Recover, max(0, t.until.Sub(m.Now)))
}

func (m *Machine) recovered(g *generation) {
	t := m.history.trouble
	m.emit(plugin.EventRecovered, g, fmt.Sprintf("it is healthy again; it had failed at %s: %v", t.since.Format(time.RFC3339), t.last))
	m.stopTimer(g, Recover)
	m.history.trouble, g.err = trouble{}, nil
}
