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
		in.rank = cmp.Or(record.Rank, uint64(len(records)-i)*spacing) // without a rank, it is older than those with one
		in.source = record.Source
		in.announced = plugin.Info{Type: record.Type, Name: record.Name, Endpoint: record.Endpoint, Versions: record.Versions}
		in.id, in.record, in.at, in.registeredAt = record.ID, listed, record.Endpoint, record.RegisteredAt
		in.account, in.registration, in.memory = record.Account, record.Registration, &record
		if record.Endpoint == record.SocketPath {
			in.announced.Endpoint = "" // it is the socket, which may have moved
		}
		m.lastRank = max(m.lastRank, in.rank)
		m.emit(plugin.EventRestored, in, "known from before the restart; checking whether it is alive")
		if _, known := m.restored[record.Socket]; known || record.Socket == (plugin.SocketID{}) {
			// If two records have the same socket, only the last registration counts.
			m.went(in, "its record does not identify its socket uniquely", ByLoss)
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

// present returns the instances whose sockets exist, and the gone instances that are still in their lane, in no order.
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
				m.disappear(at, c.Withdrawn)
			}
		}
		if appeared {
			m.enter(in, Asking, ByAppearance)
			m.dial(in)
		}
	}
	// Sockets may have swapped paths, so delete all before adding any.
	for _, mv := range moves {
		if m.sockets[mv.in.info.SocketPath] == mv.in {
			delete(m.sockets, mv.in.info.SocketPath)
		}
	}
	for _, mv := range moves {
		m.moved(mv.in, mv.to)
	}
}

// replace records that in replaces at on its path. at stays in the registry for replaceWindow, however long the handlers take. If deciding
// is true, at waits for the answer of in.
func (m *Machine) replace(at, in *instance, deciding bool) {
	at.replacement = in
	m.set(at, Replace, replaceWindow)
	if deciding {
		in.replaces = append(in.replaces, at)
		m.decide(in, replaceWindow)
	}
}

// appear returns the instance for a new appearance of a socket: a restored one or a new one. The caller asks it.
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
		in.rank = m.lastRank + c.Info.Appearance*rankStep // above all restored instances
	}
	m.sockets[c.Info.SocketPath] = in
	m.appearances[c.Info.Appearance] = in
	return in
}

// rankStep is the distance between the ranks of two appearances. It leaves room for rankBehindRestored and allows for 2^38 appearances.
// Ranks below it belong to no appearance, and are not recorded.
const rankStep = 1 << 26

// remembered is the rank of an instance from before a restart, and its socket.
type remembered struct {
	rank   uint64
	socket plugin.SocketID
}

// rankBehindRestored lowers the rank of an instance that was found after a restart and has no record. It ranks the instance below the
// restored instances of its name whose sockets are younger, and above the others: most likely it was their standby before the restart.
func (m *Machine) rankBehindRestored(in *instance, key plugin.Name) {
	if !in.provisional {
		return
	}
	in.provisional = false
	birth := in.info.Socket.Birth
	below, limit := between(m.remembered[key], birth, 0, in.rank)
	if limit == in.rank {
		return
	}
	// Restored instances of other names may announce this name later, so stay clear of their ranks.
	for _, others := range m.remembered {
		_, limit = between(others, birth, below, limit)
	}
	for _, others := range m.remembered {
		below, _ = between(others, birth, below, limit)
	}
	if limit > rankStep {
		below = max(below, rankStep)
	}
	// A later appearance ranks nearer to the limit. The room shrinks with every restart; if there is none, the birth times decide.
	in.rank = limit - max((limit-below)/(in.info.Appearance+1), 1)
}

// between narrows a range of ranks: the result is below the known ranks whose sockets were born after birth, and above the other known
// ranks.
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

// moved handles the new path of a socket. If the socket is also the plugin's endpoint, the lane registers the plugin again.
func (m *Machine) moved(in *instance, to *cache.PluginInfo) {
	if in.phase == Gone {
		return
	}
	m.touch(in)
	dirKindChanged := in.info.FoundInDeprecatedDir != to.FoundInDeprecatedDir
	in.info = to
	m.sockets[to.SocketPath] = in
	switch {
	case in.phase == Asking:
		m.do(Cancel{in.ref}) // the attempt dials the old path; answered dials the new one
	case dirKindChanged || in.phase == Missing || in.phase == Lost || in.phase == Waiting && in.failure.Kind == Absent:
		m.ask(in, ByMove)
	case in.phase == Superseded:
		m.confirm(in)
	}
	if in.lane != nil {
		m.kick(in.lane)
	}
}

func (m *Machine) disappear(in *instance, withdrawn *Failure) {
	if withdrawn != nil {
		m.went(in, withdrawn.Err.Error(), ByLoss)
		return
	}
	m.watchUnlinked(in)
	m.went(in, "its socket was removed", ByLoss)
}

// went handles that an instance is gone. Its registry entry is removed immediately, unless a replacement at its path may take over soon.
// The lane calls the handler later.
func (m *Machine) went(in *instance, why string, cause Cause) {
	if in.phase == Gone {
		return
	}
	in.why = why
	m.reserve(in)
	m.releaseQuota(in)
	m.end(in, plugin.ResultGone, nil)
	m.halt(in)
	if in.phase == Ready {
		m.do(Close{in.ref})
	}
	m.enter(in, Gone, cause)
	if m.sockets[in.info.SocketPath] == in {
		delete(m.sockets, in.info.SocketPath)
	}
	if m.appearances[in.info.Appearance] == in {
		delete(m.appearances, in.info.Appearance)
	}
	l, served := in.lane, in.recorded() || in.held()
	if l == nil || l.held != in || !l.hasReplacement(in) {
		m.unrecord(in)
	}
	if served {
		m.retryNewer(in)
	}
	m.decided(in)
}

// lost handles that a socket of a plugin that had answered does not accept connections any more.
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
		m.lookAgain(in, s) // the attempt in progress finds out
		return
	case f.Kind == Absent && path == in.info.SocketPath && in.lastLook:
		m.giveUp(in, what, f, cause)
		return
	case f.Kind == Absent && path == in.info.SocketPath:
		// It was removed or renamed; the next file events show which.
		m.stop(in, Retry)
		m.unwatchBoth(in)
		in.failure = f
		m.enter(in, Missing, cause)
		m.set(in, TurnUp, replaceWindow)
		return
	}
	m.hide(in, fmt.Errorf("nobody accepts on %s any more: %w", what, f.Err))
	kept := in.recorded() && in.memory == nil && m.UnreachableGrace > 0
	switch {
	case kept && busy:
		m.lookAgain(in, s)
	case kept:
		m.halt(in)
		in.failure, in.lostWhat = f, what
		m.enter(in, Lost, cause)
		m.set(in, Grace, m.UnreachableGrace)
		m.retryNewer(in)
	default:
		m.giveUp(in, what, f, cause)
	}
}

// giveUp ends an instance whose socket or endpoint, which is what, does not accept connections. As long as the socket exists, it is retried
// with back-off, as a new instance.
func (m *Machine) giveUp(in *instance, what string, f *Failure, cause Cause) {
	if in.phase == Gone {
		return
	}
	tries, failing := in.tries, in.failing
	fresh := m.reborn(in, "nobody accepts on "+what, cause)
	fresh.tries, fresh.failing = tries, failing
	m.addFailure(fresh, f)
	fresh.reported = f.Err.Error()
	m.end(fresh, plugin.ResultFailed, f.Err)
	m.retryLater(fresh, ByAnswer)
}

// unrecord removes an instance that is gone from the registry. It is not dispensed from now on; the removal from the disk may take longer.
func (m *Machine) unrecord(in *instance) {
	if !in.recorded() {
		return
	}
	in.record = unrecorded
	m.do(Hide{in.entry(), errors.New(in.why)})
	m.emit(plugin.EventDeregistered, in, in.why)
	m.do(Forget(in.entry()))
}

// hide makes the registry stop dispensing an instance until it is registered again or becomes a standby. The record stays, because the same
// process serves the same socket, so it is still the same instance.
func (m *Machine) hide(in *instance, why error) {
	if in.record != listed || in.phase == Gone {
		return
	}
	in.record = hidden
	m.touch(in)
	m.do(Hide{in.entry(), why})
	m.emit(plugin.EventUnreachable, in, why.Error())
}

// hideMoved hides an instance whose endpoint in the registry is out of date.
func (m *Machine) hideMoved(in *instance) {
	if in.at != in.endpoint() {
		m.hide(in, fmt.Errorf("the socket is not at %s any more", in.at))
	}
}

// confirm allows the registry to dispense a standby that has answered, unless its endpoint in the registry is out of date.
func (m *Machine) confirm(in *instance) {
	if m.hideMoved(in); in.recorded() && in.at == in.endpoint() {
		in.record = listed
		m.do(Confirm(in.entry()))
	}
}
