package machine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// lane makes the calls for one plugin type and name, one at a time.
type lane struct {
	key     plugin.Name
	members []*instance // that announced the name, the newest first
	// held is the instance that the handler has: its RegisterPlugin succeeded and no DeRegisterPlugin followed. heldBy is
	// that handler.
	held   *instance
	heldBy int
	call   CallKind // in progress; zero if the lane is idle
	todo   []task   // after the call, whatever its result
	walk
}

// walk is the work of a lane that is not idle: the registration of an instance, or a single call.
type walk struct {
	subject    *instance
	handler    int
	endpoint   string
	deprecated bool
	kind       plugin.EventKind // of the event for the registration
	previous   *instance        // that the handler had before
	failure    *Failure
}

// join adds an instance to the members, in order.
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
	nothing    action = iota
	deregister        // deregister the held instance from its handler
	drop              // remove an instance that is gone and not held
	release           // remove a live instance from the registry, because its type has no handler
	refuse            // refuse or ignore an instance that is ready, because its type has no handler
	register          // register an instance that is ready
	standDown         // make an instance that is ready the standby of a newer one
	ask               // ask a superseded or moved instance again, so that it can be registered
)

// next returns the next action of the lane, and the instance for it. It changes nothing. handler is the current one for the lane's type,
// zero if there is none.
func (m *Machine) next(l *lane, handler int) (action, *instance) {
	if l.held != nil && (l.heldBy != handler || l.held.phase == Gone && !l.hasReplacement(l.held)) {
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
		case in == l.held && in.awaitsReplacement() && in.phase == Gone:
			return nothing, nil
		case in == l.held && in.phase == Gone:
			// Its replacement is ready. It is an older instance if its socket was renamed to this path.
		case in == l.held && in.phase == Registered && in.given != (given{in.endpoint(), in.info.FoundInDeprecatedDir}):
			return ask, in // its socket moved
		case in == l.held:
			return l.nextStandby(i)
		case m.isSet(in, Decide):
			return nothing, nil
		case in.phase == Superseded:
			return ask, in
		}
	}
	return nothing, nil
}

// nextStandby returns the next action for the instances older than members[i]: a ready instance becomes a standby.
func (l *lane) nextStandby(i int) (action, *instance) {
	for _, in := range l.members[i+1:] {
		if in.phase == Ready {
			return standDown, in
		}
	}
	return nothing, nil
}

// hasReplacement reports whether an instance that is gone has a replacement at its path that is ready in this lane, or whose answer is
// awaited.
func (l *lane) hasReplacement(in *instance) bool {
	r := in.replacement
	return in.awaitsReplacement() || r != nil && r.lane == l && r.phase == Ready
}

// clearHeld records that the handler has no instance any more.
func (l *lane) clearHeld() {
	l.held, l.heldBy = nil, 0
	for _, m := range l.members {
		m.given = given{}
	}
}

// sharesEndpoint reports whether the handler received the endpoint for a member other than in. Members that are gone count until they leave
// the lane, so that InstanceGone is called for the last one.
func (l *lane) sharesEndpoint(endpoint string, in *instance) bool {
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

// kick makes an idle lane do what is next.
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
			m.plan(l, task{do: doDeRegister}, task{do: doDetach})
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

// drop removes an instance that is gone from the lane, and calls InstanceGone if the handler received its endpoint.
func (m *Machine) drop(l *lane, in *instance) {
	m.leave(l, in)
	m.unrecord(in)
	if e := in.given.endpoint; e != "" && l.heldBy != 0 && !l.sharesEndpoint(e, in) {
		l.walk = walk{subject: in, handler: l.heldBy, endpoint: e}
		m.plan(l, task{do: doGone, endpoint: e})
	}
}

// leave removes an instance from its lane. Instances that may have the name now are retried.
func (m *Machine) leave(l *lane, in *instance) {
	in.lane = nil
	l.members = slices.DeleteFunc(l.members, func(o *instance) bool { return o == in })
	for _, o := range l.snapshot() {
		if o.barred && o.phase != Refused && m.refusal(l, o, o.account) == nil {
			m.askAgain(o, ByRival)
		}
	}
}

// retryNewer immediately retries the newer instances that were refused while in served, which it does not any more.
func (m *Machine) retryNewer(in *instance) {
	if in.lane == nil {
		return
	}
	for _, o := range in.lane.snapshot() {
		if o != in && o.phase != Refused && !o.barred && o.failure != nil && o.failure.Kind == Fault && newestFirst(o, in) < 0 {
			m.askAgain(o, ByRival)
		}
	}
}

// release removes a live instance from the registry, because its type has no handler. An attempt or a refusal in progress continues.
func (m *Machine) release(l *lane, in *instance) {
	if in.phase == Asking || in.phase == Telling || in.phase == Refused {
		m.unwatchBoth(in)
	} else {
		m.halt(in)
		in.failure = nil
		if !m.IgnoreUnhandled {
			in.failure = noHandler(in)
		}
		m.enter(in, Refused, ByTurn)
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
	m.reject(in, noHandler(in), ByTurn)
}

func (m *Machine) standDown(l *lane, in *instance) {
	in.failure = nil
	if !in.hasEndpointWatched() { // otherwise the first probe of the endpoint does this
		in.tries, in.failing = 0, time.Time{}
	}
	m.enter(in, Superseded, ByTurn)
	m.end(in, plugin.ResultSuperseded, nil)
	m.emit(plugin.EventSuperseded, in, "instance "+l.held.id+" is newer and current")
	m.watchConn(in)
	m.watchEndpoint(in)
	m.confirm(in)
}
