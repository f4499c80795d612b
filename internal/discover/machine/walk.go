package machine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/patchbay-dev/patchbay/plugin"
)

// task is what a lane does after its call, whatever comes of that.
type task struct {
	do       doing
	failure  *Failure
	reason   string
	endpoint string
}

type doing uint8

const (
	doDeRegister doing = iota // have the handler let go of the subject
	doUnhand                  // the same in a walk, if the handler has the subject; what is gone waits for its lane
	doLetGo                   // the handler was changed, or the subject is gone: it leaves, or rests
	doGone                    // tell the handler of an endpoint that is gone
	doWithdraw                // take the subject out of the registry after a failure
	doRemove                  // take the subject out of the registry
	doTurnDown                // end the walk of a subject that was not taken
	doSave                    // go on with a walk after the handler has taken the subject
	doDiscard                 // take back what was saved
	doTakenBack               // end the walk of a subject that could not be saved or told
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
	case doUnhand:
		if l.held == in && in.phase != Gone {
			m.call(l, CallDeRegister, nil)
		}
	case doLetGo:
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
	case doTakenBack:
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

// register begins to walk an instance through its handler, the registry and the plugin itself: validated, admitted, registered, saved,
// told, announced (docs/adr/0004).
func (m *Machine) register(l *lane, in *instance, handler int) {
	kind := plugin.EventRegistered
	if l.held == in {
		kind = plugin.EventUpdated
	}
	m.to(in, Walking, ByTurn)
	l.walk = walk{subject: in, handler: handler, endpoint: in.endpoint(), deprecated: in.info.FoundInDeprecatedDir, kind: kind}
	// A handler need not find out for itself what is known to be so.
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
		if r.Failure != nil && r.Failure.nobody() {
			m.plan(l, task{do: doTurnDown, failure: &Failure{Err: endpointSilent{r.Failure.Err}, Kind: Patience}})
			break
		}
		m.call(l, CallValidate, nil)
	case CallValidate:
		m.validated(l, r.Failure)
	case CallAdmit:
		if r.Failure != nil {
			m.turnedDownEarly(l, r.Failure)
			break
		}
		m.handOver(l)
	case CallRegister:
		m.handedOver(l, r)
	case CallSave:
		m.saved(l, r)
	case CallTell:
		if r.Failure != nil && in.phase != Gone {
			l.failure = r.Failure
			m.call(l, CallKeep, r.Failure)
			break
		}
		m.announce(l, nil)
	case CallKeep:
		if r.Kept {
			m.announce(l, l.failure)
			break
		}
		m.takeBack(l, l.failure, true)
	case CallDiscard:
		if r.Failure != nil {
			m.do(DiscardLater{in.ref, in.entry()})
		}
	case CallDeRegister:
		l.letGo()
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
		m.turnedDownEarly(l, f.wrap("plugin validation failed: %w"))
	case m.Admits && l.subject.phase != Gone:
		m.call(l, CallAdmit, nil)
	default:
		m.handOver(l)
	}
}

// turnedDownEarly ends a walk before the handler was given its subject. One that was to be registered again at its new path cannot
// stay at the old one.
func (m *Machine) turnedDownEarly(l *lane, f *Failure) {
	m.plan(l, task{do: doWithdraw, failure: f}, task{do: doUnhand}, task{do: doTurnDown, failure: f})
}

func (m *Machine) handOver(l *lane) {
	if l.subject.phase == Gone {
		m.do(Close{l.subject.ref})
		return
	}
	m.call(l, CallRegister, nil)
}

// handedOver takes over what RegisterPlugin did: on success the handler has the instance, on failure it has none.
func (m *Machine) handedOver(l *lane, r Returned) {
	in := l.subject
	if l.held != nil && l.held != in && l.held.phase != Gone {
		l.previous = l.held
		m.supersede(l.held)
	}
	if r.Failure != nil {
		l.letGo()
		f := r.Failure.wrap("plugin registration failed: %w")
		m.plan(l, task{do: doWithdraw, failure: f}, task{do: doTurnDown, failure: f})
		return
	}
	former, endpoint := in.given.endpoint, l.endpoint
	l.held, l.heldBy = in, l.handler
	in.given = given{endpoint, l.deprecated}
	in.registration = r.Registration
	if former != "" && former != endpoint && !l.handedUnder(former, in) {
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
		m.takeBack(l, r.Failure.wrap("cannot save the registration: %w"), false)
	case in.phase == Gone:
		in.id = r.ID
		m.do(Close{in.ref})
		m.plan(l, task{do: doDiscard})
	default:
		in.id = r.ID
		m.call(l, CallTell, nil)
	}
}

// announce makes a registration visible that was saved and told, or is kept though it could not be told: then the plugin is told again
// later.
func (m *Machine) announce(l *lane, untold *Failure) {
	in := l.subject
	if in.phase == Gone {
		m.do(Close{in.ref})
		m.plan(l, task{do: doDiscard})
		return
	}
	m.do(Publish{in.ref})
	in.record, in.at = listed, l.endpoint
	tries := in.tries
	in.recovers()
	in.again = false
	m.to(in, Registered, ByResult)
	m.end(in, plugin.ResultRegistered, nil)
	m.settled(in)
	m.watchConn(in)
	m.watchEndpoint(in)
	m.emit(l.kind, in, "registered with its handler")
	if l.previous != nil && l.previous.phase != Gone {
		m.emit(plugin.EventSuperseded, l.previous, "instance "+in.id+" is current now")
	}
	if untold != nil {
		in.tries = tries
		m.fails(in, untold)
		m.retryLater(in, ByResult)
	}
}

// takeBack undoes a registration that could not be saved or told. The plugin is sent no refusal: it did nothing wrong.
func (m *Machine) takeBack(l *lane, f *Failure, discard bool) {
	m.do(Close{l.subject.ref})
	if discard {
		m.plan(l, task{do: doDiscard}, task{do: doUnhand}, task{do: doTakenBack, failure: f})
		return
	}
	m.plan(l, task{do: doUnhand}, task{do: doTakenBack, failure: f})
}

// turnDown takes over that the subject of a walk was not taken. Unless that only asks for patience, the plugin is told.
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

// withdraw takes the subject of a lane that was not taken out of the registry, where it may stand from before, or has it wait there if the
// failure only asks for patience.
func (m *Machine) withdraw(l *lane, f *Failure) {
	if f.Kind == Patience {
		m.hide(l.subject, f.Err)
		return
	}
	served := l.subject.recorded()
	m.remove(l, f.Err.Error())
	if served {
		m.yieldTo(l.subject)
	}
}

// remove takes the subject of a lane, which is not gone, out of the registry, if it is there.
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
	// What registers from now on must not be what is being removed.
	in.id = ""
}

func (m *Machine) supersede(in *instance) {
	if in.phase == Registered {
		m.to(in, Superseded, ByResult)
	}
	m.hideMoved(in)
}

func (f *Failure) wrap(format string) *Failure {
	return &Failure{Err: fmt.Errorf(format, f.Err), Kind: f.Kind, Reason: f.Reason}
}

// endpointSilent is the error of an instance on whose endpoint nobody accepts: whoever serves it may be back without its registrar
// noticing.
type endpointSilent struct{ error }

func (e endpointSilent) Unwrap() error { return e.error }

func (f *Failure) endpoint() bool {
	_, ok := errors.AsType[endpointSilent](f.Err)
	return ok
}
