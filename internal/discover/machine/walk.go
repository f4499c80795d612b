package machine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/patchbay-dev/patchbay/plugin"
)

// task is what a lane does after its call, whatever the result.
type task struct {
	do       taskKind
	failure  *Failure
	reason   string
	endpoint string
}

type taskKind uint8

const (
	doDeRegister   taskKind = iota // call DeRegisterPlugin
	doUndoRegister                 // call DeRegisterPlugin if the handler has the subject and the subject is not gone
	doDetach                       // after DeRegisterPlugin: remove a subject that is gone from the lane, otherwise make it superseded
	doGone                         // call InstanceGone for an endpoint
	doWithdraw                     // remove the subject from the registry after a failure, or hide it
	doRemove                       // remove the subject from the registry
	doTurnDown                     // end the registration of a subject that was refused
	doSave                         // save the subject in the registry
	doDiscard                      // delete what was saved
	doEndUndo                      // end the registration of a subject that could not be saved or notified
)

func (m *Machine) plan(l *lane, tasks ...task) {
	l.todo = append(l.todo, tasks...)
	m.advance(l)
}

func (m *Machine) advance(l *lane) {
	for l.call == 0 && len(l.todo) > 0 {
		t := l.todo[0]
		l.todo = slices.Delete(l.todo, 0, 1)
		m.perform(l, t)
	}
	if l.call == 0 {
		l.walk = walk{}
	}
}

func (m *Machine) perform(l *lane, t task) {
	in := l.subject
	m.touch(in)
	switch t.do {
	case doDeRegister:
		m.call(l, CallDeRegister, nil)
	case doUndoRegister:
		if l.held == in && in.phase != Gone {
			m.call(l, CallDeRegister, nil)
		}
	case doDetach:
		if in.phase == Gone {
			m.leave(l, in)
			m.unrecord(in)
		} else {
			m.supersede(in)
		}
	case doGone:
		l.endpoint = t.endpoint
		m.call(l, CallGone, nil)
	case doWithdraw:
		m.withdraw(l, t.failure)
	case doRemove:
		m.remove(l, t.reason)
	case doTurnDown:
		m.turnDown(in, t.failure)
	case doSave:
		if in.phase == Gone {
			m.do(Close{in.ref})
			return
		}
		if in.registeredAt.IsZero() {
			in.registeredAt = m.Now
		}
		l.endpoint = t.endpoint
		m.call(l, CallSave, nil)
	case doDiscard:
		m.call(l, CallDiscard, nil)
	case doEndUndo:
		if in.phase != Gone {
			m.hide(in, t.failure.Err)
			m.failed(in, t.failure, ByResult)
		}
	}
}

func (m *Machine) call(l *lane, kind CallKind, f *Failure) {
	l.call = kind
	m.touch(l.subject)
	m.do(Call{
		Kind: kind, Ref: l.subject.ref, Handler: l.handler, Instance: l.subject.describe(l.endpoint), Deprecated: l.deprecated, Failure: f,
	})
}

// register begins the registration of an instance. The steps are: probe its endpoint, validate, admit, register with the handler, save,
// notify the plugin, publish (docs/adr/0004).
func (m *Machine) register(l *lane, in *instance, handler int) {
	kind := plugin.EventRegistered
	if l.held == in {
		kind = plugin.EventUpdated
	}
	m.enter(in, Walking, ByTurn)
	l.walk = walk{subject: in, handler: handler, endpoint: in.endpoint(), deprecated: in.info.FoundInDeprecatedDir, kind: kind}
	// Probe a separate endpoint first, so that the handler is not called for one that does not accept connections.
	if in.registration.WatchEndpoint && l.held != in && l.endpoint != in.info.SocketPath {
		m.call(l, CallProbe, nil)
		return
	}
	m.call(l, CallValidate, nil)
}

func (m *Machine) returned(r Returned) {
	l := m.lanes[r.Key]
	if l == nil || l.call == 0 {
		return
	}
	call, in := l.call, l.subject
	l.call = 0
	m.touch(in)
	switch call {
	case CallProbe:
		if r.Failure != nil && r.Failure.isDead() {
			m.plan(l, task{do: doTurnDown, failure: &Failure{Err: endpointSilent{r.Failure.Err}, Kind: Patience}})
			break
		}
		m.call(l, CallValidate, nil)
	case CallValidate:
		m.validated(l, r.Failure)
	case CallAdmit:
		if r.Failure != nil {
			m.turnDownEarly(l, r.Failure)
			break
		}
		m.callRegister(l)
	case CallRegister:
		m.registerReturned(l, r)
	case CallSave:
		m.saved(l, r)
	case CallTell:
		if r.Failure != nil && in.phase != Gone {
			l.failure = r.Failure
			m.call(l, CallKeep, r.Failure)
			break
		}
		m.publish(l, nil)
	case CallKeep:
		if r.Kept {
			m.publish(l, l.failure)
			break
		}
		m.undo(l, l.failure, true)
	case CallDiscard:
		if r.Failure != nil {
			m.do(DiscardLater{in.ref, in.entry()})
		}
	case CallDeRegister:
		l.clearHeld()
	case CallRemove:
		m.removed(l, r.Failure)
	case CallGone:
	}
	m.advance(l)
	m.kick(l)
	m.retire()
}

func (m *Machine) validated(l *lane, f *Failure) {
	switch {
	case f != nil:
		m.turnDownEarly(l, f.wrap("plugin validation failed: %w"))
	case m.Admits && l.subject.phase != Gone:
		m.call(l, CallAdmit, nil)
	default:
		m.callRegister(l)
	}
}

// turnDownEarly ends a registration before RegisterPlugin. If the subject was registered at a former path, that registration ends too.
func (m *Machine) turnDownEarly(l *lane, f *Failure) {
	m.plan(l, task{do: doWithdraw, failure: f}, task{do: doUndoRegister}, task{do: doTurnDown, failure: f})
}

func (m *Machine) callRegister(l *lane) {
	if l.subject.phase == Gone {
		m.do(Close{l.subject.ref})
		return
	}
	m.call(l, CallRegister, nil)
}

// registerReturned handles the result of RegisterPlugin. After a success the handler has the instance, after a failure it has none.
func (m *Machine) registerReturned(l *lane, r Returned) {
	in := l.subject
	if l.held != nil && l.held != in && l.held.phase != Gone {
		l.previous = l.held
		m.supersede(l.held)
	}
	if r.Failure != nil {
		l.clearHeld()
		f := r.Failure.wrap("plugin registration failed: %w")
		m.plan(l, task{do: doWithdraw, failure: f}, task{do: doTurnDown, failure: f})
		return
	}
	former, endpoint := in.given.endpoint, l.endpoint
	l.held, l.heldBy = in, l.handler
	in.given = given{endpoint, l.deprecated}
	in.registration = r.Registration
	if former != "" && former != endpoint && !l.sharesEndpoint(former, in) {
		m.plan(l, task{do: doGone, endpoint: former}, task{do: doSave, endpoint: endpoint})
		return
	}
	m.plan(l, task{do: doSave, endpoint: endpoint})
}

func (m *Machine) saved(l *lane, r Returned) {
	in := l.subject
	switch {
	case r.Failure != nil:
		if r.ID != "" {
			m.do(DiscardLater{in.ref, in.entry()})
		}
		m.undo(l, r.Failure.wrap("cannot save the registration: %w"), false)
	case in.phase == Gone:
		in.id = r.ID
		m.do(Close{in.ref})
		m.plan(l, task{do: doDiscard})
	default:
		in.id = r.ID
		m.call(l, CallTell, nil)
	}
}

// publish makes a saved registration visible. unnotified is the failure to notify the plugin, if the handler keeps the registration despite
// it; the notification is then retried later.
func (m *Machine) publish(l *lane, unnotified *Failure) {
	in := l.subject
	if in.phase == Gone {
		m.do(Close{in.ref})
		m.plan(l, task{do: doDiscard})
		return
	}
	m.do(Publish{in.ref})
	in.record, in.at = listed, l.endpoint
	tries := in.tries
	in.clearFailure()
	in.again = false
	m.enter(in, Registered, ByResult)
	m.end(in, plugin.ResultRegistered, nil)
	m.forgetRemnants(in)
	m.watchConn(in)
	m.watchEndpoint(in)
	m.emit(l.kind, in, "registered with its handler")
	if l.previous != nil && l.previous.phase != Gone {
		m.emit(plugin.EventSuperseded, l.previous, "instance "+in.id+" is current now")
	}
	if unnotified != nil {
		in.tries = tries
		m.addFailure(in, unnotified)
		m.retryLater(in, ByResult)
	}
}

// undo undoes a registration that could not be saved or notified. The plugin is sent no refusal, because the failure is not its fault.
func (m *Machine) undo(l *lane, f *Failure, discard bool) {
	m.do(Close{l.subject.ref})
	if discard {
		m.plan(l, task{do: doDiscard}, task{do: doUndoRegister}, task{do: doEndUndo, failure: f})
		return
	}
	m.plan(l, task{do: doUndoRegister}, task{do: doEndUndo, failure: f})
}

// turnDown ends a registration that was refused. The plugin is sent a refusal, unless it is only not ready yet.
func (m *Machine) turnDown(in *instance, f *Failure) {
	switch {
	case in.phase == Gone:
		m.do(Close{in.ref})
	case f.Kind == Patience:
		m.do(Close{in.ref})
		m.failed(in, f, ByResult)
	default:
		m.reject(in, f, ByResult)
	}
}

// withdraw removes the subject of a failed registration from the registry, where it may be from an earlier one. If it is only not ready
// yet, it is hidden instead.
func (m *Machine) withdraw(l *lane, f *Failure) {
	if f.Kind == Patience {
		m.hide(l.subject, f.Err)
		return
	}
	served := l.subject.recorded()
	m.remove(l, f.Err.Error())
	if served {
		m.retryNewer(l.subject)
	}
}

// remove removes the subject of a lane from the registry, unless it is gone or not there.
func (m *Machine) remove(l *lane, why string) {
	in := l.subject
	if !in.recorded() || in.phase == Gone {
		return
	}
	m.reserve(in)
	in.record = unrecorded
	in.why = why
	m.call(l, CallRemove, nil)
}

func (m *Machine) removed(l *lane, f *Failure) {
	in := l.subject
	m.emit(plugin.EventDeregistered, in, in.why)
	if f == nil {
		return
	}
	m.do(Hide{in.entry(), errors.New(in.why)}, Forget(in.entry()))
	// The next registration needs an ID of its own, because this one is still being removed.
	in.id = ""
}

func (m *Machine) supersede(in *instance) {
	if in.phase == Registered {
		m.enter(in, Superseded, ByResult)
	}
	m.hideMoved(in)
}

func (f *Failure) wrap(format string) *Failure {
	return &Failure{Err: fmt.Errorf(format, f.Err), Kind: f.Kind, Reason: f.Reason}
}

// endpointSilent is the error for an endpoint that does not accept connections. Its server may come back without any event.
type endpointSilent struct{ error }

func (e endpointSilent) Unwrap() error { return e.error }

func (f *Failure) isOfEndpoint() bool {
	_, ok := errors.AsType[endpointSilent](f.Err)
	return ok
}
