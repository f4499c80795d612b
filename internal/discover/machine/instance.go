package machine

import (
	"cmp"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
)

// record says whether the registry has an instance.
type record uint8

const (
	unrecorded record = iota
	listed            // it is dispensed if it is current
	hidden            // it is not dispensed
)

// instance is one appearance of a socket and what is known of the plugin behind it.
type instance struct {
	ref    Ref
	phase  Phase
	info   *cache.PluginInfo // which is never changed
	source plugin.Source
	// state is what operators read, since when.
	state plugin.State
	since time.Time
	// passed are the states of which [Pass] told since the last event.
	passed []plugin.State
	// rank orders the instances of one name: the greater is the newer. It is that of the appearance, also after a restart; what appears
	// then is above all that is remembered, but see yield, for which rank is provisional.
	rank        uint64
	provisional bool
	// why says, once it is gone, what became of it; lostWhat, of one that is lost, on what nobody accepts.
	why, lostWhat string
	// lastLook: it is given up if its socket is still missing.
	lastLook bool

	// tries counts failed attempts since the last success, the first of which was at failing and failure is the last one; the next is due
	// then. told is the failure of which an event told last.
	tries   int
	failing time.Time
	next    time.Time
	failure *Failure
	told    string
	// again: what an attempt was refused for that is under way may be over, so that the next one follows at once.
	again bool

	// announced is what it said of itself last; valid if lane is not nil.
	announced plugin.Info
	// kept is how many bytes of what it announced are counted, as keptBy's. What is remembered from before a restart was, and is when it has
	// answered.
	kept   int
	keptBy uint32
	lane   *lane
	peer   plugin.Peer
	// refused is what it announced last, as far as that names it, if it was refused for what it announced; announced is what counts.
	refused plugin.Name
	// account is whose plugin it is, as far as it has answered.
	account plugin.Account
	// barred: it may not register what it announced. It stands in its lane for that to change and counts for nothing there.
	barred bool
	// given is what its handler judged it by when it was given to it, now or before it was superseded; zero before.
	given given

	// id is its AllocID. The record is listed in the registry with an endpoint.
	id           string
	record       record
	at           string
	registeredAt time.Time
	// memory is the record from before a restart of the host, as long as it is not settled whether this is the same instance.
	memory *plugin.Instance
	// replacement is the instance that stood at the same path when this one went. replaces are those that await this one's answer: more than
	// one if it moved on before it gave one.
	replacement *instance
	replaces    []*instance
	// registration is what its handler found out about it when it was registered last.
	registration plugin.Registration
	// watches are for its death: of who accepts on its registration socket and, if its handler asks for it, on its endpoint.
	watches [2]watching
}

// given is what a handler judges an instance by.
type given struct {
	endpoint   string
	deprecated bool
}

func (m *Machine) newInstance(info *cache.PluginInfo) *instance {
	m.last++
	in := &instance{ref: m.last, phase: Created, info: info}
	m.byRef[in.ref] = in
	return in
}

// named is what people call it: by what it announced last.
func (in *instance) named() plugin.Name {
	return cmp.Or(in.refused, in.announced.PluginName())
}

// goesBy says whether a name is the one by which people call it, under its type or one of its roles.
func (in *instance) goesBy(key plugin.Name) bool {
	named := in.named()
	return named.Name == key.Name && (named.Type == key.Type || slices.Contains(in.registration.Roles, key.Type))
}

func (in *instance) waits() bool {
	return in.phase == Waiting || in.phase == Refused || in.phase == Telling
}

func (in *instance) held() bool { return in.lane != nil && in.lane.held == in }

func (in *instance) recorded() bool { return in.record != unrecorded }

func (in *instance) entry() Entry { return Entry{in.announced.Type, in.announced.Name, in.id} }

func (in *instance) describe(endpoint string) plugin.Instance {
	return plugin.Instance{
		ID: in.id, Type: in.announced.Type, Name: in.announced.Name, Versions: in.announced.Versions,
		Endpoint: endpoint, SocketPath: in.info.SocketPath, Socket: in.info.Socket, Peer: in.peer,
		Source: in.source, Rank: in.recordedRank(), RegisteredAt: in.registeredAt, Account: in.account, Registration: in.registration,
	}
}

// recordedRank returns the rank for the record: zero if the one it was restored from has none, since the order of records tells again.
func (in *instance) recordedRank() uint64 {
	if in.rank < rankStep {
		return 0
	}
	return in.rank
}

// awaited says that its replacement may answer any moment.
func (in *instance) awaited() bool {
	r := in.replacement
	return r != nil && r.phase != Gone && slices.Contains(r.replaces, in)
}

func (in *instance) version() string {
	switch {
	case in.registration.Version != "":
		return in.registration.Version
	case len(in.announced.Versions) > 0:
		return in.announced.Versions[0]
	}
	return ""
}

func (in *instance) endpoint() string { return cmp.Or(in.announced.Endpoint, in.info.SocketPath) }

func (in *instance) path(s Socket) string {
	if s == Endpoint {
		return in.endpoint()
	}
	return in.info.SocketPath
}

// rest ends what the instance has under way: an attempt, a call to the plugin, timers, the watches.
func (m *Machine) rest(in *instance) {
	m.stop(in, Retry)
	m.stop(in, TurnUp)
	m.stop(in, Grace)
	in.next = time.Time{}
	if in.phase == Asking || in.phase == Walking || in.phase == Telling {
		m.do(Cancel{in.ref})
	}
	m.unwatchBoth(in)
}

func (m *Machine) state(in *instance) plugin.State {
	l := in.lane
	switch {
	case l != nil && l.call == CallDeRegister && l.held == in:
		return plugin.StateDeregistering
	case in.phase == Lost:
		return plugin.StateUnreachable
	case in.phase == Refused && in.failure == nil:
		return plugin.StateIgnored
	case in.phase == Refused:
		return plugin.StateRefused
	case in.held() && in.record == listed, in.phase == Registered:
		return plugin.StateRegistered
	}
	switch in.phase {
	case Asking:
		if in.memory != nil {
			return plugin.StateRestored
		}
		return plugin.StateConnecting
	case Ready:
		return plugin.StateWaiting
	case Walking:
		return walkStates[l.call]
	case Telling, Waiting:
		return in.failedState()
	case Missing, Superseded:
		return plugin.StateSuperseded
	case Restored:
		return plugin.StateRestored
	default:
	}
	return in.state
}

func (in *instance) failedState() plugin.State {
	switch {
	case in.failure.Kind == Distrusted || in.failure.refusal:
		return plugin.StateRefused
	case (in.failure.nobody() || in.failure.endpoint()) && in.announced.Type != "":
		return plugin.StateUnreachable
	}
	return plugin.StateBackoff
}

var walkStates = map[CallKind]plugin.State{
	CallProbe: plugin.StateValidating, CallValidate: plugin.StateValidating, CallRemove: plugin.StateValidating,
	CallAdmit:    plugin.StateAdmitting,
	CallRegister: plugin.StateRegistering, CallSave: plugin.StateRegistering, CallGone: plugin.StateRegistering,
	CallTell: plugin.StateNotifying, CallKeep: plugin.StateNotifying, CallDiscard: plugin.StateNotifying,
	CallDeRegister: plugin.StateNotifying,
}
