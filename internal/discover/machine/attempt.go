package machine

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// ask begins an attempt: it asks the plugin for its type and name. It does nothing if an attempt is in progress.
func (m *Machine) ask(in *instance, cause Cause) {
	switch in.phase {
	case Asking, Ready, Walking, Telling, Gone:
		return
	default:
	}
	m.stop(in, Retry)
	m.stop(in, TurnUp)
	m.stop(in, Grace)
	in.next = time.Time{}
	m.enter(in, Asking, cause)
	m.dial(in)
}

// askAgain immediately retries an instance that waits, because the reason for its last failure may be gone, and resets its back-off. If an
// attempt has reached the handler, or a refusal is being sent, the retry follows it.
func (m *Machine) askAgain(in *instance, cause Cause) {
	switch in.phase {
	case Waiting, Refused:
		in.tries = 0
		m.ask(in, cause)
	case Walking, Telling:
		in.again = true
	default:
	}
}

func (m *Machine) dial(in *instance) {
	in.again = false
	began := m.Now
	if in.announced.Type == "" && in.tries == 0 && !in.info.Timestamp.IsZero() {
		began = in.info.Timestamp
	}
	m.do(Begin{in.ref, began, in.info.SocketPath})
	if in.tries == 0 && in.lane != nil {
		m.decide(in, AnswerWindow)
	}
	m.do(Ask{in.ref, in.info.SocketPath, in.info.Socket, in.announced.Type, in.tries == 0})
}

// decide makes other instances wait for the answer of this one, at most for window.
func (m *Machine) decide(in *instance, window time.Duration) {
	if until, set := m.timers[Timer{in.ref, Decide}]; !set || m.Now.Add(window).Before(until) {
		m.set(in, Decide, window)
	}
}

// decided ends the wait for an instance, because it has answered, its window has passed or it is gone.
func (m *Machine) decided(in *instance) {
	m.stop(in, Decide)
	waited := in.replaces
	in.replaces = nil
	if in.lane != nil {
		m.kick(in.lane)
	}
	for _, replaced := range waited {
		if l := replaced.lane; l != nil {
			m.kick(l)
		}
	}
}

func (m *Machine) answered(a Answered) {
	in := m.byRef[a.Ref]
	switch {
	case in == nil || in.phase != Asking:
		m.do(Close{a.Ref})
		return
	case a.Path != in.info.SocketPath:
		// The socket has moved since, so another plugin may have answered.
		m.do(Close{a.Ref})
		m.dial(in)
		return
	}
	m.touch(in)
	if a.Failure != nil {
		m.do(Close{a.Ref})
		m.unanswered(in, a)
	} else {
		m.identified(in, a)
	}
	m.decided(in)
}

// unanswered handles an attempt in which the plugin could not be asked.
func (m *Machine) unanswered(in *instance, a Answered) {
	f := a.Failure
	if in.lane != nil && f.isDead() {
		m.lost(in, Registration, a.Path, f, ByAnswer)
		return
	}
	if f.Kind == Distrusted {
		in = m.distrusted(in, f.Err)
		m.setRefused(in, a.Info, a.Account)
	}
	m.failed(in, f, ByAnswer)
}

// identified handles the answer of a plugin.
func (m *Machine) identified(in *instance, a Answered) {
	ignored := m.IgnoreUnhandled && m.handlers[a.Info.Type] == 0
	if f := m.unacceptable(in, a); f != nil {
		m.setRefused(in, a.Info, a.Account)
		if ignored {
			m.do(Close{in.ref})
			m.failed(in, f, ByAnswer)
		} else {
			m.reject(in, f, ByAnswer)
		}
		return
	}
	key := a.Info.PluginName()
	switch {
	case in.memory != nil && (in.memory.Peer == plugin.Peer{} || in.memory.Peer != a.Peer):
		in = m.reborn(in, "another process serves its socket since the restart", ByAnswer)
	case in.lane != nil && in.lane.key != key:
		in = m.reborn(in, fmt.Sprintf("its socket now announces %s/%s", key.Type, key.Name), ByAnswer)
	}
	l := m.lane(key)
	refused := m.refusal(l, in, a.Account)
	if refused != nil {
		in = m.distrusted(in, refused.Err)
	}
	m.touch(in)
	in.memory, in.lastLook = nil, false
	in.announced, in.refused = a.Info, plugin.Name{}
	in.peer, in.account = a.Peer, a.Account
	if in.lane == nil {
		m.rankBehindRestored(in, key)
		l.join(in)
	}
	in.barred = refused != nil
	switch {
	case in.barred && ignored:
		m.ignore(in, ByAnswer)
	case in.barred:
		m.reject(in, refused, ByAnswer)
	default:
		m.enter(in, Ready, ByAnswer)
		m.kick(l)
	}
}

// refusal returns why an instance may not register under the type and name of the lane, or nil if it may. An instance that is registered
// keeps its name.
func (m *Machine) refusal(l *lane, in *instance, account plugin.Account) *Failure {
	if m.Trust == nil {
		return nil
	}
	err := m.Trust.Type(l.key.Type, account)
	if err == nil && !in.recorded() && !in.held() {
		err = m.checkName(l, in, account)
	}
	if err == nil {
		return nil
	}
	f := &Failure{Err: err, Kind: Fault}
	if refusal, ok := errors.AsType[*trust.Refusal](err); ok {
		f.Kind, f.Reason = Distrusted, refusal.Reason
	}
	return f
}

// distrusted ends an instance that was registered and is not trusted any more. It returns the instance that takes its place, or in.
func (m *Machine) distrusted(in *instance, refused error) *instance {
	if in.recorded() || in.held() {
		return m.reborn(in, refused.Error(), ByAnswer)
	}
	return in
}

// setRefused records the type and name that a refused instance announced, so that its status can be found by name. It records the account
// only for an instance that has never been in a lane.
func (m *Machine) setRefused(in *instance, info plugin.Info, account plugin.Account) {
	in.refused = plugin.Name{}
	if len(info.Type)+len(info.Name) <= maxNaming && check(m.Bounds, plugin.Info{Type: info.Type, Name: info.Name}) == nil {
		in.refused = info.PluginName()
	}
	if in.lane == nil && account.Known {
		in.account = account
	}
}

// reborn ends an instance and returns a new one on the same socket, with the same rank. The new one gets the attempt and, if the plugin has
// just answered, the connection.
func (m *Machine) reborn(in *instance, why string, cause Cause) *instance {
	fresh := m.newInstance(in.info)
	begins := ByLoss
	if cause == ByAnswer {
		begins = ByAnswer
	}
	fresh.source, fresh.rank, fresh.announced = in.source, in.rank, in.announced
	fresh.account, fresh.registration = in.account, in.registration
	fresh.kept, fresh.keptBy, in.kept = in.kept, in.keptBy, 0
	m.do(Hand{in.ref, fresh.ref, cause == ByAnswer})
	m.enter(fresh, Asking, begins)
	m.went(in, why, cause)
	m.sockets[in.info.SocketPath] = fresh
	m.appearances[in.info.Appearance] = fresh
	return fresh
}

func noHandler(in *instance) *Failure {
	err := fmt.Errorf("no handler registered for plugin type: %s at socket %s", in.announced.Type, in.info.SocketPath)
	return &Failure{Err: err, Kind: Unclaimed}
}

// reject ends an attempt and sends the plugin a refusal.
func (m *Machine) reject(in *instance, f *Failure, cause Cause) {
	f.refusal = true
	m.addFailure(in, f)
	m.end(in, plugin.ResultRefused, f.Err)
	if f.Kind == Distrusted {
		m.do(Distrust{f.Reason})
	}
	m.enter(in, Telling, cause)
	m.keepRefusal(in)
	if !f.quiet && in.shouldReport(f.Err) {
		m.emit(plugin.EventRefused, in, f.Err.Error())
	}
	m.do(Tell{in.ref, in.announced.Type, in.info.SocketPath, f.Err})
}

func (m *Machine) delivered(in *instance) {
	if in == nil || in.phase != Telling {
		return
	}
	switch {
	case in.failure.Kind != Unclaimed:
		m.retryLater(in, ByDelivery)
	case m.handlers[in.announced.Type] != 0 || in.again:
		in.again = false
		m.enter(in, Asking, ByDelivery)
		m.dial(in)
	default:
		m.enter(in, Refused, ByDelivery)
	}
	if in.lane != nil {
		m.kick(in.lane)
	}
}

func (m *Machine) ignore(in *instance, cause Cause) {
	m.do(Close{in.ref})
	m.unwatchBoth(in)
	in.clearFailure()
	m.enter(in, Refused, cause)
	m.end(in, plugin.ResultIgnored, nil)
	m.emit(plugin.EventIgnored, in, "no handler is registered for its type, so it is ignored")
}

// failed ends an attempt without a refusal, and schedules the next one.
func (m *Machine) failed(in *instance, f *Failure, cause Cause) {
	m.addFailure(in, f)
	kind, result := plugin.EventFailed, plugin.ResultFailed
	if f.Kind == Distrusted {
		kind, result = plugin.EventRefused, plugin.ResultRefused
		m.do(Distrust{f.Reason})
	}
	m.retryLater(in, cause)
	if f.Kind == Distrusted {
		m.keepRefusal(in)
	}
	m.end(in, result, f.Err)
	if !f.quiet && in.shouldReport(f.Err) {
		m.emit(kind, in, f.Err.Error())
	}
}

func (m *Machine) addFailure(in *instance, f *Failure) {
	in.tries++
	in.failure = f
	if in.failing.IsZero() {
		in.failing = m.Now
	}
}

func (in *instance) clearFailure() {
	in.tries, in.failing, in.failure, in.reported = 0, time.Time{}, nil, ""
}

func (m *Machine) retryLater(in *instance, cause Cause) {
	wait := usual.At(in.tries, m.Chance)
	switch {
	case in.failure.isOfEndpoint():
		wait = min(wait, probeInterval)
	case in.failure.Kind == Fault && cause == ByDelivery && m.hasOlderServing(in):
		wait = behindAnother.At(in.tries, m.Chance)
	case in.failure.Kind == Unserved:
		wait = unserved.At(in.tries, m.Chance)
	}
	if in.again {
		in.tries, in.again, wait = 0, false, 0
	}
	m.enter(in, Waiting, cause)
	in.next = m.Now.Add(wait)
	m.set(in, Retry, wait)
}

// hasOlderServing reports whether an older instance of the same name is in the registry and accepts connections.
func (m *Machine) hasOlderServing(in *instance) bool {
	if in.lane == nil || in.barred {
		return false
	}
	for _, o := range in.lane.members {
		if o != in && o.phase != Gone && o.phase != Lost && o.recorded() && newestFirst(in, o) < 0 {
			return true
		}
	}
	return false
}

// shouldReport reports whether a failure leads to an event: if it differs from the last one, and after 4, 16, 64 … failures in a row.
func (in *instance) shouldReport(err error) bool {
	text := err.Error()
	if text == in.reported && (bits.OnesCount(uint(in.tries)) != 1 || bits.TrailingZeros(uint(in.tries))%2 != 0) {
		return false
	}
	in.reported = text
	return true
}
