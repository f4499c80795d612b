package machine

import (
	"cmp"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
)

// record is the state of an instance in the registry.
type record uint8

const (
	unrecorded record = iota
	listed            // dispensed if current
	hidden            // not dispensed
)

// instance is one appearance of a socket, and the plugin behind it.
type instance struct {
	ref    Ref
	phase  Phase
	info   *cache.PluginInfo // immutable
	source plugin.Source
	state  plugin.State   // shown to operators
	since  time.Time      // of state
	passed []plugin.State // the states that [Pass] has reported since the last event
	// rank orders the instances of one name: a newer instance has a greater rank. It derives from the number of the appearance, so new
	// appearances after a restart rank above all restored instances. While provisional is set, rankBehindRestored may lower it.
	rank        uint64
	provisional bool
	// why is the reason why the instance is gone. lostWhat is the socket or endpoint that does not accept while it is lost.
	why, lostWhat string
	// lastLook is true if the instance is given up when its socket is still missing.
	lastLook bool

	tries    int       // failed attempts since the last success
	failing  time.Time // when the first of them failed
	next     time.Time // of the next attempt
	failure  *Failure  // of the last attempt
	reported string    // the failure in the last event
	// again is true if the attempt in progress must be followed immediately by another: the reason for a refusal may be gone.
	again bool

	announced plugin.Info // valid if lane is not nil
	// kept is the size of the announcement in the quota of the user keptBy. It is zero for a restored instance that has not answered.
	kept   int
	keptBy uint32
	lane   *lane
	peer   plugin.Peer
	// refused is the name in an announcement that was refused. The instance is listed under it if announced is empty.
	refused plugin.Name
	account plugin.Account // known after the first answer
	// barred is true if the instance may not have the name of its lane. It stays in the lane until the name is free.
	barred bool
	// given is what the handler last received; zero if it received nothing.
	given given

	id           string // its AllocID in the registry
	record       record
	at           string // the endpoint in the registry
	registeredAt time.Time
	// memory is the record from before a restart, until it is known whether this is the same instance.
	memory *plugin.Instance
	// replacement is the instance that took the path of this one. replaces are the instances that wait for the answer of this one; there
	// are several if it moved before it answered.
	replacement *instance
	replaces    []*instance
	// registration is the result of the last registration with the handler.
	registration plugin.Registration
	watches      [2]watching // by Socket
}

// given are the properties that a handler learns of an instance, and that can change.
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

// named returns the type and name that the plugin announced last, even if they were refused.
func (in *instance) named() plugin.Name {
	return cmp.Or(in.refused, in.announced.PluginName())
}

// isNamed reports whether key names the instance, by its type or one of its roles.
func (in *instance) isNamed(key plugin.Name) bool {
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

// recordedRank returns the rank to save: zero for an instance that was restored without one, whose order is that of the records.
func (in *instance) recordedRank() uint64 {
	if in.rank < rankStep {
		return 0
	}
	return in.rank
}

// awaitsReplacement reports whether the instance is kept until its replacement has answered.
func (in *instance) awaitsReplacement() bool {
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

// halt stops the attempt, timers and watches of an instance.
func (m *Machine) halt(in *instance) {
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
	case (in.failure.isDead() || in.failure.isOfEndpoint()) && in.announced.Type != "":
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
