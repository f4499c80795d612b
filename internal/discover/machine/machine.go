// Package machine is the state machine of plugin instances. It decides which phase each instance is in, which call its lane makes next, and
// which instance of a name is current. It is pure: [Machine.Step] takes one input and returns effects, without goroutines, clocks, locks,
// random numbers or I/O. Package reconciler executes the effects and passes their results back as inputs.
//
// [Table] lists all transitions, and docs/reference/states.md is generated from it. A transition outside the table is a bug.
package machine

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/quota"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// AnswerWindow is how long the older instances of a name wait for the answer of a new instance.
	AnswerWindow = 100 * time.Millisecond
	// replaceWindow is how long an instance stays registered after its socket was replaced. A healthy plugin registers faster, even on a
	// busy machine, so an upgrade leaves no gap. Connections to the path already reach the new instance.
	replaceWindow = time.Second
	// probeInterval is the maximum time until the machine notices the end of a plugin whose process cannot be watched.
	probeInterval = 5 * time.Second
	// unlinkedWindow is how long a plugin may run after its socket was removed, without creating another one, before it is reported as
	// unlinked: another program may have removed the socket.
	unlinkedWindow = 5 * time.Second
)

// maxKept is the capacity of the slice of effects that is reused by the next step.
const maxKept = 64

// The pauses between attempts. A new instance that is refused while an older one serves is retried rarely, because a failed attempt may
// cost the older one its registration. So is a program that does not serve the registration service: after a fix, it creates a new socket.
var (
	usual         = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Minute}
	behindAnother = backoff.Backoff{Min: 30 * time.Second, Max: time.Hour}
	unserved      = backoff.Backoff{Min: 2 * time.Minute, Max: time.Hour}
)

// Machine is the state of all instances and lanes. Set the exported fields, call [Machine.Start] once, and then [Machine.Step] for each
// input. It is not safe for concurrent use.
type Machine struct {
	// Admits makes [CallAdmit] part of each registration.
	Admits bool
	// Trust decides who may register which types, and who may take whose name. If it is nil, every user may register and take any.
	Trust *trustjudge.Judge
	// IgnoreUnhandled sends plugins of types without a handler no refusal.
	IgnoreUnhandled bool
	// Bounds are the limits for announcements and plugins; a zero field means its default.
	Bounds plugin.Bounds
	// UnreachableGrace is how long a registered plugin that does not accept connections stays registered.
	UnreachableGrace time.Duration
	// NameGrace is how long the name of a plugin stays reserved for its user after the plugin has gone. Names are reserved only with Trust.
	NameGrace time.Duration

	// Entered, if set, is called for each transition, and Stepped for each step. Only tests set them.
	Entered func(Ref, Row)
	Stepped func(Input, []Effect)

	Moment
	out  []Effect
	last Ref

	handlers map[string]int // by type
	// retiring are handlers that were replaced, but that lanes may still use.
	retiring map[int]bool
	lanes    map[plugin.Name]*lane
	byRef    map[Ref]*instance
	// sockets and appearances are the instances whose sockets exist, by path and by number of appearance.
	sockets     map[string]*instance
	appearances map[uint64]*instance
	// restored are the instances from before a restart whose sockets have not been seen yet.
	restored map[plugin.SocketID]*instance
	// remembered are the ranks of all instances from before a restart, and lastRank is the highest. Both are constant after Start.
	remembered map[plugin.Name][]remembered
	lastRank   uint64
	// complete is true when all sockets that existed at the start have been seen.
	complete bool
	timers   map[Timer]time.Time // when each active timer fires
	// unlinked are the watched instances whose sockets were removed.
	unlinked map[*instance]bool
	// robbed are those of them that still serve. refusals are the last refusals by name.
	robbed, refusals remnants
	reserved         reservations
	// announced counts the bytes of the announcements of all plugins, and plugins the plugins with an announcement.
	announced, plugins *quota.Pool
	// touched are the instances whose state this step may have changed, and reported those for which it emitted an event.
	touched, reported []*instance
}

// Start returns the first effects. restored are the instances that the registry restored, those of one name in the reverse order of their
// registration; reserved are the reservations from before a restart.
func (m *Machine) Start(at Moment, restored []plugin.Instance, reserved []plugin.Reservation) []Effect {
	m.Moment = at
	b := &m.Bounds
	*b = plugin.Bounds{
		Text: cmp.Or(b.Text, 4096), Versions: cmp.Or(b.Versions, 64),
		UserBytes: cmp.Or(b.UserBytes, 4<<20), TotalBytes: cmp.Or(b.TotalBytes, 16<<20),
		UserPlugins: cmp.Or(b.UserPlugins, math.MaxInt32), TotalPlugins: cmp.Or(b.TotalPlugins, math.MaxInt32),
	}
	m.handlers, m.retiring, m.lanes = map[string]int{}, map[int]bool{}, map[plugin.Name]*lane{}
	m.byRef, m.sockets, m.appearances = map[Ref]*instance{}, map[string]*instance{}, map[uint64]*instance{}
	m.restored, m.remembered, m.lastRank = map[plugin.SocketID]*instance{}, map[plugin.Name][]remembered{}, rankStep
	m.timers, m.unlinked = map[Timer]time.Time{}, map[*instance]bool{}
	m.announced = quota.New(quota.Reserved(b.UserBytes, b.TotalBytes), m.privileged)
	m.plugins = quota.New(quota.Limits{User: b.UserPlugins, Total: b.TotalPlugins}, m.privileged)
	m.restoreReservations(reserved)
	m.restore(restored)
	return m.effects()
}

// Step applies one input and returns the effects to execute. The slice is valid until the next step.
func (m *Machine) Step(at Moment, in Input) []Effect {
	m.Moment = at
	if cap(m.out) > maxKept {
		m.out = nil
	}
	clear(m.out[:cap(m.out)]) // release the values of the last step
	switch input := in.(type) {
	case Changed:
		m.apply(input)
	case Complete:
		m.becomeComplete()
	case HandlerSet:
		m.setHandler(input.Type, input.Handler)
	case Urged:
		m.urge(input.Key)
	case Released:
		m.releaseName(input.Key)
	case Answered:
		m.answered(input)
	case Returned:
		m.returned(input)
	case Delivered:
		m.delivered(m.byRef[input.Ref])
	case Fired:
		m.fired(input.Timer)
	case Hinted:
		m.check(m.byRef[input.Ref], input.Socket)
	case Unwatchable:
		if in := m.byRef[input.Ref]; in != nil && in.watches[Registration] == watched {
			m.lookAgain(in, Registration)
		}
	case Probed:
		m.probed(input)
	case Ended:
		m.unwatchUnlinked(m.byRef[input.Ref])
	case Sought:
		m.sought(m.byRef[input.Ref], input.Listens)
	default:
		panic(fmt.Sprintf("machine: %T is not an input", in))
	}
	effects := m.effects()
	if m.Stepped != nil {
		m.Stepped(in, effects)
	}
	return effects
}

func (m *Machine) effects() []Effect {
	for _, in := range m.touched {
		if state := m.state(in); state != in.state {
			in.state, in.since = state, m.Now
			m.pass(in)
		}
		m.tidy(in)
	}
	m.touched, m.reported = m.touched[:0], m.reported[:0]
	out := m.out
	m.out = out[:0]
	return out
}

func (m *Machine) do(effects ...Effect) { m.out = append(m.out, effects...) }

// tidy deletes an instance that is gone, unless its lane, a watch or a timer still uses it.
func (m *Machine) tidy(in *instance) {
	if in.phase != Gone || in.lane != nil || m.unlinked[in] {
		return
	}
	for kind := range timerKinds {
		if _, set := m.timers[Timer{in.ref, kind}]; set {
			return
		}
	}
	delete(m.byRef, in.ref)
}

// enter moves an instance to a phase. The transition must be in [Table].
func (m *Machine) enter(in *instance, phase Phase, cause Cause) {
	row := Row{From: in.phase, On: cause, To: phase}
	in.phase = phase
	m.touch(in)
	if m.Entered != nil {
		m.Entered(in.ref, row)
	}
}

// Size returns the number of lanes, instances, active timers and replaced handlers that are in memory.
func (m *Machine) Size() int { return len(m.lanes) + len(m.byRef) + len(m.timers) + len(m.retiring) }

func (m *Machine) touch(in *instance) { m.touched = append(m.touched, in) }

func (m *Machine) set(in *instance, kind TimerKind, after time.Duration) {
	t := Timer{in.ref, kind}
	m.timers[t] = m.Now.Add(after)
	m.do(SetTimer{t, after})
}

func (m *Machine) stop(in *instance, kind TimerKind) {
	t := Timer{in.ref, kind}
	if _, set := m.timers[t]; set {
		delete(m.timers, t)
		m.do(StopTimer{t})
	}
}

func (m *Machine) isSet(in *instance, kind TimerKind) bool {
	_, set := m.timers[Timer{in.ref, kind}]
	return set
}

func (m *Machine) fired(t Timer) {
	in := m.byRef[t.Ref]
	if _, set := m.timers[t]; !set || in == nil {
		return
	}
	delete(m.timers, t)
	m.touch(in)
	switch t.Kind {
	case Retry:
		in.next = time.Time{}
		m.ask(in, ByTimer)
	case Decide:
		m.decided(in)
	case Replace:
		m.unrecord(in)
	case TurnUp:
		in.lastLook = true // the socket may be back without an event
		m.ask(in, ByTimer)
	case Grace:
		m.giveUp(in, in.lostWhat, in.failure, ByTimer)
	case Rob:
		m.seek(in)
	case LookAgain:
		m.check(in, Registration)
	case LookAgainToo:
		m.check(in, Endpoint)
	default:
	}
}

func (m *Machine) emit(kind plugin.EventKind, in *instance, message string) {
	m.do(Emit{m.event(kind, in, message)})
	if kind != plugin.EventFailed {
		in.passed = nil
	}
	m.reported = append(m.reported, in)
}

func (m *Machine) event(kind plugin.EventKind, in *instance, message string) plugin.Event {
	known := in.shownKey()
	return plugin.Event{
		Time: m.Now, Kind: kind, Type: known.Type, Name: known.Name, Instance: in.id,
		Endpoint: in.endpoint(), SocketPath: in.info.SocketPath, Message: message,
	}
}

// transientStates are the states that have no event of their own.
var transientStates = []plugin.State{
	plugin.StateConnecting, plugin.StateWaiting, plugin.StateValidating, plugin.StateAdmitting, plugin.StateRegistering,
	plugin.StateNotifying, plugin.StateDeregistering,
}

// pass reports that an instance has entered a transient state, unless this step emitted an event for the instance. It reports each state
// once until the next event that is not a failure.
func (m *Machine) pass(in *instance) {
	if !m.Passing || !slices.Contains(transientStates, in.state) || slices.Contains(in.passed, in.state) {
		return
	}
	in.passed = append(in.passed, in.state)
	if slices.Contains(m.reported, in) {
		return
	}
	message := ""
	if in.failure != nil {
		message = in.failure.Err.Error()
	}
	m.do(Pass{m.event(plugin.EventKind(in.state), in, message)})
}

func (m *Machine) end(in *instance, result plugin.Result, err error) {
	m.do(End{in.ref, in.announced, result, err})
}

// setHandler sets or removes the handler for a type. Plugins of the previous handler are deregistered from it.
func (m *Machine) setHandler(ptype string, handler int) {
	if before := m.handlers[ptype]; before != 0 {
		m.retiring[before] = true
	}
	if m.handlers[ptype] = handler; handler == 0 {
		delete(m.handlers, ptype)
	}
	for _, l := range m.sortedLanes() {
		if l.key.Type != ptype {
			continue
		}
		for _, in := range l.snapshot() {
			if in.phase == Refused || handler != 0 {
				m.askAgain(in, ByHandler)
			}
		}
		m.kick(l)
	}
	m.retire()
}

// retire releases the replaced handlers that no lane uses any more.
func (m *Machine) retire() {
	if len(m.retiring) == 0 {
		return
	}
	for _, handler := range slices.Sorted(maps.Keys(m.retiring)) {
		if !m.has(handler) {
			delete(m.retiring, handler)
			m.do(Retire{handler})
		}
	}
}

func (m *Machine) has(handler int) bool {
	for _, l := range m.lanes {
		if l.heldBy == handler || l.call != 0 && l.handler == handler {
			return true
		}
	}
	return false
}

// urge immediately retries the waiting instances of a name, or of all names if key is zero, and resets their back-off.
func (m *Machine) urge(key plugin.Name) {
	for _, in := range inOrder(m.present()) {
		if (key == (plugin.Name{}) || in.isNamed(key)) && (in.phase != Refused || key != (plugin.Name{})) {
			m.askAgain(in, ByOperator)
		}
	}
}

// Waits reports whether an instance of a name waits for its next attempt.
func (m *Machine) Waits(key plugin.Name) bool {
	return slices.ContainsFunc(inOrder(m.present()), func(in *instance) bool { return in.isNamed(key) && in.waits() })
}
