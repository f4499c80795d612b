package reconciler

import (
	"cmp"
	"slices"
)

type laneKey struct{ ptype, name string }

// lane is where the handler of one plugin type and name is called, one call at a time. Guarded by Reconciler.mu.
type lane struct {
	key laneKey
	// members are the instances that announced the name, the newest first.
	members []*instance
	// held is the instance that the handler has: its RegisterPlugin succeeded and no DeRegisterPlugin followed. heldBy is
	// that handler.
	held   *instance
	heldBy *handler
	// running: a goroutine runs the lane.
	running bool
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

func (l *lane) leave(in *instance) {
	in.lane = nil
	l.members = slices.DeleteFunc(l.members, func(m *instance) bool { return m == in })
}

// action is one thing for a lane to do.
type action int

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

// next says what the present state of the lane calls for. It looks and changes nothing. h is the present handler for the lane's
// type, nil if there is none.
func (l *lane) next(h *handler) (action, *instance) {
	if l.held != nil && (l.heldBy != h || l.held.gone && !l.replaced(l.held)) {
		return deregister, l.held
	}
	for _, in := range l.members {
		switch {
		case in.gone && in != l.held:
			return drop, in
		case h == nil && in.ready():
			return refuse, in
		case h == nil && in.restored == nil && (in.recorded || in.state == StateSuperseded):
			return release, in
		}
	}
	if h == nil {
		return nothing, nil
	}
	for i, in := range l.members {
		switch {
		case in.ready():
			return register, in
		case in == l.held && in.gone && in.awaited():
			return nothing, nil
		case in == l.held && in.gone:
			// Its replacement is ready, and older if it was renamed over it.
		case in == l.held && (in.given != in.endpoint() || in.judgeAnew) && !in.asking && !in.settling && in.retry == nil &&
			in.missing == nil:
			// Its socket moved.
			return ask, in
		case in == l.held:
			return l.restBehind(i)
		case in.deciding:
			return nothing, nil
		case in.state == StateSuperseded && !in.asking && !in.settling && in.missing == nil:
			return ask, in
		}
	}
	return nothing, nil
}

// restBehind stands the ready instances behind members[i] down.
func (l *lane) restBehind(i int) (action, *instance) {
	for _, in := range l.members[i+1:] {
		if in.ready() {
			return standDown, in
		}
	}
	return nothing, nil
}

// replaced says that in, which is gone, has a replacement at its path which has announced the same name and waits for its turn, or
// may do so any moment.
func (l *lane) replaced(in *instance) bool {
	r := in.replacement
	return in.awaited() || r != nil && !r.gone && r.lane == l && r.ready()
}

// letGo records that the handler has no instance any more.
func (l *lane) letGo() {
	l.held, l.heldBy = nil, nil
	for _, m := range l.members {
		m.handed = false
	}
}

// handedUnder says whether a member other than in was handed to the handler under the endpoint. One that is gone counts as long as it has
// not left, so that the last one to leave is the one that is told.
func (l *lane) handedUnder(endpoint string, in *instance) bool {
	return slices.ContainsFunc(l.members, func(m *instance) bool { return m != in && m.handed && m.given == endpoint })
}
