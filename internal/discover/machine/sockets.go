package machine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
)

func (m *Machine) restore(records []plugin.Instance) {
	spacing := rankStep / uint64(len(records)+1)
	for i, record := range records {
		in := m.newInstance(&cache.PluginInfo{SocketPath: record.SocketPath, Socket: record.Socket})
		in.phase, in.state, in.since = Restored, plugin.StateRestored, m.Now
		in.rank = cmp.Or(record.Rank, uint64(len(records)-i)*spacing) // one without is older than all with one
		in.source = record.Source
		in.announced = plugin.Info{Type: record.Type, Name: record.Name, Endpoint: record.Endpoint, Versions: record.Versions}
		in.id, in.record, in.at, in.registeredAt = record.ID, listed, record.Endpoint, record.RegisteredAt
		in.account, in.registration, in.memory = record.Account, record.Registration, &record
		if record.Endpoint == record.SocketPath {
			in.announced.Endpoint = "" // it is wherever its socket is
		}
		m.lastRank = max(m.lastRank, in.rank)
		m.emit(plugin.EventRestored, in, "known from before the restart; checking whether it is alive")
		if _, known := m.restored[record.Socket]; known || record.Socket == (plugin.SocketID{}) {
			// Of two records of one socket the one that was registered last counts.
			m.went(in, "it cannot be told whether its socket is still the same", ByLoss)
			continue
		}
		m.restored[record.Socket] = in
		key := in.announced.PluginName()
		m.remembered[key] = append(m.remembered[key], remembered{in.rank, record.Socket})
	}
}

// becomeComplete gives up, in the order in which they were restored, the instances whose sockets have not been seen.
func (m *Machine) becomeComplete() {
	m.complete = true
	for _, in := range inOrder(slices.Collect(maps.Values(m.restored))) {
		delete(m.restored, in.info.Socket)
		m.went(in, "its socket did not survive the restart", ByLoss)
	}
}

func inOrder(instances []*instance) []*instance {
	slices.SortFunc(instances, func(a, b *instance) int { return cmp.Compare(a.ref, b.ref) })
	return instances
}

// instances are those whose sockets exist, and those that are gone and still in their lane.
func (m *Machine) instances() []*instance { return inOrder(m.present()) }

// present are the instances in no order.
func (m *Machine) present() []*instance {
	all := slices.Collect(maps.Values(m.appearances))
	for _, l := range m.lanes {
		for _, in := range l.members {
			if in.phase == Gone {
				all = append(all, in)
			}
		}
	}
	return all
}

type move struct {
	in *instance
	to *cache.PluginInfo
}

func (m *Machine) apply(changes []Change) {
	present := make(map[uint64]bool, len(changes))
	for _, c := range changes {
		if c.Info != nil {
			present[c.Info.Appearance] = true
		}
	}
	var moves []move
	for _, c := range changes {
		at := m.sockets[c.Path]
		if at != nil && c.Info != nil && at.info.Appearance == c.Info.Appearance {
			continue
		}
		var in *instance
		appeared := false
		if c.Info != nil {
			if in = m.appearances[c.Info.Appearance]; in != nil {
				moves = append(moves, move{in, c.Info})
			} else {
				in, appeared = m.appear(c), true
			}
		}
		if at != nil && !present[at.info.Appearance] {
			if in != nil {
				m.replace(at, in, appeared || in.phase == Asking)
				m.went(at, "its socket was replaced", ByLoss)
			} else {
				m.vanish(at, c.Withdrawn)
			}
		}
		if appeared {
			m.to(in, Asking, ByAppearance)
			m.dial(in)
		}
	}
	// Sockets may have changed places, so all leave before any arrives.
	for _, mv := range moves {
		if m.sockets[mv.in.info.SocketPath] == mv.in {
			delete(m.sockets, mv.in.info.SocketPath)
		}
	}
	for _, mv := range moves {
		m.moved(mv.in, mv.to)
	}
}

// replace notes that in stands at the path where at stood; deciding says that it may answer any moment. However long their handlers take,
// at is in the registry for that moment only.
func (m *Machine) replace(at, in *instance, deciding bool) {
	at.replacement = in
	m.set(at, Replace, replaceWindow)
	if deciding {
		in.replaces = append(in.replaces, at)
		m.decide(in, replaceWindow)
	}
}

// appear returns the instance for a new appearance of a socket: a restored one or a new one. It is not asked yet.
func (m *Machine) appear(c Change) *instance {
	in := m.restored[c.Info.Socket]
	if in != nil {
		delete(m.restored, c.Info.Socket)
		in.info = c.Info
		m.lane(in.announced.PluginName()).join(in)
		m.hideMoved(in)
	} else {
		in = m.newInstance(c.Info)
		in.source, in.provisional = c.Source, !m.complete && c.Info.Socket.Birth != 0
		in.rank = m.lastRank + c.Info.Appearance*rankStep // above all that is remembered
	}
	m.sockets[c.Info.SocketPath] = in
	m.appearances[c.Info.Appearance] = in
	return in
}

// rankStep lies between the ranks of appearances: room for those that yield, and enough ranks for a host's life. Ranks below it are none of
// an appearance, and not recorded.
const rankStep = 1 << 26

// remembered is the rank of an instance from before a restart, and its socket.
type remembered struct {
	rank   uint64
	socket plugin.SocketID
}

// yield ranks an instance that was found behind those remembered of its name whose sockets were born after its own, and above the rest.
// It has no record, so most likely it rested behind them before the restart and was never registered.
func (m *Machine) yield(in *instance, key plugin.Name) {
	if !in.provisional {
		return
	}
	in.provisional = false
	birth := in.info.Socket.Birth
	below, limit := between(m.remembered[key], birth, 0, in.rank)
	if limit == in.rank {
		return
	}
	// One of another name may have this one later.
	for _, others := range m.remembered {
		_, limit = between(others, birth, below, limit)
	}
	for _, others := range m.remembered {
		below, _ = between(others, birth, below, limit)
	}
	if limit > rankStep {
		below = max(below, rankStep)
	}
	// The greater the appearance, the nearer to the limit. The room in between gets less with every restart; where there is none left, the
	// births decide.
	in.rank = limit - max((limit-below)/(in.info.Appearance+1), 1)
}

// between narrows a range of ranks down to what is below those of the remembered whose sockets were born after a time, and above the rest
// of them.
func between(known []remembered, birth int64, below, limit uint64) (uint64, uint64) {
	for _, o := range known {
		if birth < o.socket.Birth && o.rank > below {
			limit = min(limit, o.rank)
		}
	}
	for _, o := range known {
		if o.rank < limit {
			below = max(below, o.rank)
		}
	}
	return below, limit
}

// moved takes over that a socket is in another place. A plugin whose endpoint is that socket is registered again there.
func (m *Machine) moved(in *instance, to *cache.PluginInfo) {
	if in.phase == Gone {
		return
	}
	m.touch(in)
	judgedAnew := in.info.FoundInDeprecatedDir != to.FoundInDeprecatedDir
	in.info = to
	m.sockets[to.SocketPath] = in
	switch {
	case in.phase == Asking:
		m.do(Cancel{in.ref}) // it is being dialled where it is no longer, and is asked again here
	case judgedAnew || in.phase == Missing || in.phase == Lost || in.phase == Waiting && in.failure.Kind == Absent:
		m.ask(in, ByMove) // somebody else may be where it was lost
	case in.phase == Superseded:
		m.rests(in)
	}
	if in.lane != nil {
		m.kick(in.lane)
	}
}

func (m *Machine) vanish(in *instance, withdrawn *Failure) {
	if withdrawn != nil {
		m.went(in, withdrawn.Err.Error(), ByLoss)
		return
	}
	m.watchUnlinked(in)
	m.went(in, "its socket was removed", ByLoss)
}

// went takes over that an instance is gone. Its registry entry goes at once, unless it may be replaced at its path any moment; the
// handler's calls follow in the lane.
func (m *Machine) went(in *instance, why string, cause Cause) {
	if in.phase == Gone {
		return
	}
	in.why = why
	m.reserve(in)
	m.letGo(in)
	m.end(in, plugin.ResultGone, nil)
	m.rest(in)
	if in.phase == Ready {
		m.do(Close{in.ref})
	}
	m.to(in, Gone, cause)
	if m.sockets[in.info.SocketPath] == in {
		delete(m.sockets, in.info.SocketPath)
	}
	if m.appearances[in.info.Appearance] == in {
		delete(m.appearances, in.info.Appearance)
	}
	l, served := in.lane, in.recorded() || in.held()
	if l == nil || l.held != in || !l.replaced(in) {
		m.unrecord(in)
	}
	if served {
		m.yieldTo(in)
	}
	m.decided(in)
}

// lost takes over that nobody accepts on a socket of a plugin that had answered.
func (m *Machine) lost(in *instance, s Socket, path string, f *Failure, cause Cause) {
	what := "its socket"
	if path != in.info.SocketPath {
		what = "its endpoint " + path
		f = &Failure{Err: endpointSilent{f.Err}, Kind: f.Kind}
	}
	busy := cause == ByProbe && (in.phase == Asking || in.phase == Ready || in.phase == Walking || in.phase == Telling)
	switch {
	case in.phase == Gone || in.phase == Lost || in.phase == Missing:
		return
	case f.Kind == Absent && path == in.info.SocketPath && busy:
		m.lookAgain(in, s) // what is under way finds out
		return
	case f.Kind == Absent && path == in.info.SocketPath && in.lastLook:
		m.giveUp(in, what, f, cause)
		return
	case f.Kind == Absent && path == in.info.SocketPath:
		// It was removed or renamed, and which of the two will be known in a moment.
		m.stop(in, Retry)
		m.unwatchBoth(in)
		in.failure = f
		m.to(in, Missing, cause)
		m.set(in, TurnUp, replaceWindow)
		return
	}
	m.hide(in, fmt.Errorf("nobody accepts on %s any more: %w", what, f.Err))
	kept := in.recorded() && in.memory == nil && m.UnreachableGrace > 0
	switch {
	case kept && busy:
		m.lookAgain(in, s)
	case kept:
		m.rest(in)
		in.failure, in.lostWhat = f, what
		m.to(in, Lost, cause)
		m.set(in, Grace, m.UnreachableGrace)
		m.yieldTo(in)
	default:
		m.giveUp(in, what, f, cause)
	}
}

// giveUp lets go of an instance where nobody accepts on what, its socket or endpoint. As long as the socket exists it is tried with
// back-off, as a new instance.
func (m *Machine) giveUp(in *instance, what string, f *Failure, cause Cause) {
	if in.phase == Gone {
		return
	}
	tries, failing := in.tries, in.failing
	fresh := m.reborn(in, "nobody accepts on "+what, cause)
	fresh.tries, fresh.failing = tries, failing
	m.fails(fresh, f)
	fresh.told = f.Err.Error()
	m.end(fresh, plugin.ResultFailed, f.Err)
	m.retryLater(fresh, ByAnswer)
}

// unrecord removes an instance that is gone from the registry: from what is dispensed at once, from the disk as soon as that can be
// done.
func (m *Machine) unrecord(in *instance) {
	if !in.recorded() {
		return
	}
	in.record = unrecorded
	m.do(Hide{in.entry(), errors.New(in.why)})
	m.emit(plugin.EventDeregistered, in, in.why)
	m.do(Forget(in.entry()))
}

// hide has an instance not dispensed, if the registry has it, until it is registered again or rests behind a newer one. Its record stays:
// the same process serves the same socket, so that it is the same instance then.
func (m *Machine) hide(in *instance, why error) {
	if in.record != listed || in.phase == Gone {
		return
	}
	in.record = hidden
	m.touch(in)
	m.do(Hide{in.entry(), why})
	m.emit(plugin.EventUnreachable, in, why.Error())
}

// hideMoved hides an instance that the registry has where it is no longer.
func (m *Machine) hideMoved(in *instance) {
	if in.at != in.endpoint() {
		m.hide(in, fmt.Errorf("the socket is not at %s any more", in.at))
	}
}

// rests has an instance that has answered, and rests behind a newer one, dispensed instead unless the registry has it where it is no
// longer.
func (m *Machine) rests(in *instance) {
	if m.hideMoved(in); in.recorded() && in.at == in.endpoint() {
		in.record = listed
		m.do(Confirm(in.entry()))
	}
}
