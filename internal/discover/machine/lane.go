package machine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// lane is where the handler of one plugin type and name is called, one call at a time.
type lane struct {
	key plugin.Name
	// members are the instances that announced the name, the newest first.
	members []*instance
	// held is the instance that the handler has: its RegisterPlugin succeeded and no DeRegisterPlugin followed. heldBy is
	// that handler.
	held   *instance
	heldBy int
	// call is what the lane is at; zero if it rests. todo is what follows that, whatever comes of it.
	call CallKind
	todo []task
	walk
}

// walk is what a lane is about: a walk of an instance through its handler, or one call.
type walk struct {
	subject    *instance
	handler    int
	endpoint   string
	deprecated bool
	kind       plugin.EventKind // of the event that tells of the registration
	previous   *instance        // that the handler had before
	failure    *Failure
}

// join adds the instance in the order of rank.
func (l *lane) join(in *instance) {
	in.lane = l
	at, _ := slices.BinarySearchFunc(l.members, in, newestFirst)
	l.members = slices.Insert(l.members, at, in)
}

func newestFirst(a, b *instance) int {
	return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(b.info.Socket.Birth, a.info.Socket.Birth))
}

func (l *lane) snapshot() []*instance { return slices.Clone(l.members) }

type action uint8

const (
	// nothing is to be done at present.
	nothing action = iota
	// deregister ends the registration of the held instance.
	deregister
	// drop lets go of an instance that is gone and not held.
	drop
	// release takes a living instance out of the registry, if it is there, for want of a handler.
	release
	// refuse tells an instance that there is no handler for its type, or leaves it alone.
	refuse
	// register walks an instance that is ready through the handler.
	register
	// standDown lets an instance that is ready rest behind a newer one.
	standDown
	// ask has a resting instance announce itself again, so that it can take over.
	ask
)

// next says what the present state of the lane calls for. It looks and changes nothing. handler is the present one for the lane's
// type, zero if there is none.
func (m *Machine) next(l *lane, handler int) (action, *instance) {
	if l.held != nil && (l.heldBy != handler || l.held.phase == Gone && !l.replaced(l.held)) {
		return deregister, l.held
	}
	for _, in := range l.members {
		switch {
		case in.phase == Gone && in != l.held:
			return drop, in
		case handler == 0 && in.phase == Ready:
			return refuse, in
		case handler == 0 && in.memory == nil && in.phase != Gone && (in.recorded() || in.phase == Superseded):
			return release, in
		}
	}
	for i, in := range l.members {
		switch {
		case in.phase == Ready:
			return register, in
		case in == l.held && in.awaited() && in.phase == Gone:
			return nothing, nil
		case in == l.held && in.phase == Gone:
			// Its replacement is ready, and older if it was renamed over it.
		case in == l.held && in.phase == Registered && in.given != (given{in.endpoint(), in.info.FoundInDeprecatedDir}):
			// Its socket moved.
			return ask, in
		case in == l.held:
			return l.restBehind(i)
		case m.isSet(in, Decide):
			return nothing, nil
		case in.phase == Superseded:
			return ask, in
		}
	}
	return nothing, nil
}

// restBehind stands the ready instances behind members[i] down.
func (l *lane) restBehind(i int) (action, *instance) {
	for _, in := range l.members[i+1:] {
		if in.phase == Ready {
			return standDown, in
		}
	}
	return nothing, nil
}

// replaced says that in, which is gone, has a replacement at its path which has announced the same name and waits for its turn, or
// may do so any moment.
func (l *lane) replaced(in *instance) bool {
	r := in.replacement
	return in.awaited() || r != nil && r.lane == l && r.phase == Ready
}

// letGo records that the handler has no instance any more.
func (l *lane) letGo() {
	l.held, l.heldBy = nil, 0
	for _, m := range l.members {
		m.given = given{}
	}
}

// handedUnder says whether a member other than in was handed to the handler under the endpoint. One that is gone counts as long as it has
// not left, so that the last one to leave is the one that is told.
func (l *lane) handedUnder(endpoint string, in *instance) bool {
	return slices.ContainsFunc(l.members, func(m *instance) bool { return m != in && m.given.endpoint == endpoint })
}

func (m *Machine) lane(key plugin.Name) *lane {
	l := m.lanes[key]
	if l == nil {
		l = &lane{key: key}
		m.lanes[key] = l
	}
	return l
}

func (m *Machine) sortedLanes() []*lane {
	return slices.SortedFunc(maps.Values(m.lanes), func(a, b *lane) int { return a.key.Compare(b.key) })
}

// kick has a lane that rests do what its present state calls for.
func (m *Machine) kick(l *lane) {
	for l.call == 0 {
		handler := m.handlers[l.key.Type]
		act, in := m.next(l, handler)
		if in != nil {
			m.touch(in)
		}
		switch act {
		case nothing:
			if len(l.members) == 0 && l.held == nil && m.lanes[l.key] == l {
				delete(m.lanes, l.key)
			}
			return
		case drop:
			m.drop(l, in)
		case deregister:
			l.walk = walk{subject: in, handler: l.heldBy}
			m.plan(l, task{do: doDeRegister}, task{do: doLetGo})
		case release:
			m.release(l, in)
		case register:
			m.register(l, in, handler)
		case refuse:
			m.refuse(in)
		case standDown:
			m.standDown(l, in)
		case ask:
			m.ask(in, ByTurn)
		}
	}
}

// drop lets an instance that is gone leave the lane, of which the handler is told if it has been given it.
func (m *Machine) drop(l *lane, in *instance) {
	m.leave(l, in)
	m.unrecord(in)
	if e := in.given.endpoint; e != "" && l.heldBy != 0 && !l.handedUnder(e, in) {
		l.walk = walk{subject: in, handler: l.heldBy, endpoint: e}
		m.plan(l, task{do: doGone, endpoint: e})
	}
}

// leave has an instance leave its lane. Those who were refused the name, and may have it now, ask again.
func (m *Machine) leave(l *lane, in *instance) {
	in.lane = nil
	l.members = slices.DeleteFunc(l.members, func(o *instance) bool { return o == in })
	for _, o := range l.snapshot() {
		if o.barred && o.phase != Refused && m.bars(l, o, o.account) == nil {
			m.askAgain(o, ByRival)
		}
	}
}

// yieldTo has those tried at once that were refused while in served: it does not any more.
func (m *Machine) yieldTo(in *instance) {
	if in.lane == nil {
		return
	}
	for _, o := range in.lane.snapshot() {
		if o != in && o.phase != Refused && !o.barred && o.failure != nil && o.failure.Kind == Fault && newestFirst(o, in) < 0 {
			m.askAgain(o, ByRival)
		}
	}
}

// release takes a living instance out for want of a handler. One that is being asked, or told so, or is left alone, goes on with that,
// and is watched no longer.
func (m *Machine) release(l *lane, in *instance) {
	if in.phase == Asking || in.phase == Telling || in.phase == Refused {
		m.unwatchBoth(in)
	} else {
		m.rest(in)
		in.failure = nil
		if !m.IgnoreUnhandled {
			in.failure = unclaimed(in)
		}
		m.to(in, Refused, ByTurn)
	}
	l.walk = walk{subject: in}
	m.plan(l, task{do: doRemove, reason: "no handler is registered for its type"})
}

func (m *Machine) refuse(in *instance) {
	if m.IgnoreUnhandled {
		m.ignore(in, ByTurn)
		return
	}
	m.unwatchBoth(in)
	m.reject(in, unclaimed(in), ByTurn)
}

func (m *Machine) standDown(l *lane, in *instance) {
	in.failure = nil
	if !in.hasEndpointWatched() { // or it is not known yet whether anybody accepts there
		in.tries, in.failing = 0, time.Time{}
	}
	m.to(in, Superseded, ByTurn)
	m.end(in, plugin.ResultSuperseded, nil)
	m.emit(plugin.EventSuperseded, in, "instance "+l.held.id+" is newer and current")
	m.watchConn(in)
	m.watchEndpoint(in)
	m.rests(in)
}
