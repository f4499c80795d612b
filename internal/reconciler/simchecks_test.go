package reconciler_test

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
)

// validInfo says that an announcement is.
func validInfo(info plugin.Info) bool {
	return info.Name != "" && !strings.Contains(info.Type, "/") && len(info.Versions) <= 64 &&
		(info.Endpoint == "" || strings.HasPrefix(info.Endpoint, "/"))
}

// heard takes over what a program says of itself.
func (m *model) heard(p *program) {
	m.count++
	p.waitsFor = lane{}
	p.heardAt, p.heardFor = m.count, m.sim.elapsed
	if !validInfo(p.said) {
		return
	}
	p.judged++
	key := lane{p.said.Type, p.said.Name}
	_, p.owns = m.life.others(plugin.Instance{Type: key.ptype, Name: key.name}, func(uid uint32) bool { return uid == p.account.UID })
	if p.record != nil && (p.record.Peer != p.peer || p.peer == plugin.Peer{}) {
		p.lost = p.record.ID
	}
	if p.found > 0 {
		if below, limit := p.between(m.before[key], 0, p.rank); limit < p.rank {
			// One of another name may have this one later: of two, the one that was born later is the newer.
			below, limit = p.between(slices.Concat(slices.Collect(maps.Values(m.before))...), below, limit)
			p.rank = limit - (limit-below)/float64(p.found+1)
		}
		p.found = 0
	}
	p.record, p.remembered, p.valid = nil, key, p.said
	p.barred, p.barredBefore = 0, p.barred
	if p.barredFrom != key {
		p.barredBefore, p.barredFrom = 0, key
	}
}

// between narrows a range of ranks down to those below what was born after the program, and above what is left then.
func (p *program) between(known []before, below, limit float64) (float64, float64) {
	for _, o := range known {
		if o.birth > p.socket.Birth && o.rank > below {
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

// told sees that a program is told what is so.
func (m *model) told(p *program, registered bool, reason string) {
	switch {
	case registered:
		p.waitsFor = lane{}
		if !slices.ContainsFunc(m.life.callers, func(h *strict) bool {
			w := h.names[p.said.Name]
			return h.ptype == p.said.Type && w != nil && w.held != "" && p.endpoints[w.held]
		}) {
			m.complain("%+v is told that it is registered, and is not", p.said)
		}
		if !slices.ContainsFunc(m.disk.saved[lane{p.said.Type, p.said.Name}], func(info *pluginInfo) bool {
			return p.endpoints[info.ConnectionInfo.SocketPath]
		}) {
			m.complain("%+v is told that it is registered, and is not on disk", p.said)
		}
		return
	case strings.Contains(reason, "patience"), strings.Contains(reason, "unavailable"), strings.Contains(reason, "disk full"):
		m.complain("%+v is sent a refusal for what is not its fault: %s", p.said, reason)
	case strings.HasPrefix(reason, "the plugin announces "):
		p.barred, p.turnedDown = 0, 0 // it waits for something else now
		if validInfo(p.said) {
			m.complain("%+v is sent a refusal for its announcement: %s", p.said, reason)
		}
	case strings.HasPrefix(reason, "user "), strings.HasPrefix(reason, "the name "):
		if !m.set.has("trust") || privileged(p.account) {
			m.complain("program %d is sent a refusal for its user: %s", p.number, reason)
		}
		if strings.HasPrefix(reason, "the name ") {
			p.barred = p.barredBefore + 1
		}
		m.toldOfName(p, reason)
	case strings.HasPrefix(reason, "plugin validation failed: "), strings.HasPrefix(reason, "not admitted: "),
		strings.HasPrefix(reason, "plugin registration failed: "):
		if !p.refused && unique(p.said.Endpoint) {
			m.complain("%+v is sent a refusal without a cause: %s", p.said, reason)
		}
	case !strings.HasPrefix(reason, "no handler registered for plugin type: "+p.said.Type) || m.set.has("ignores"):
		m.complain("%+v is sent a refusal: %s", p.said, reason)
	}
	p.owed = false
}

// unique says that an endpoint names one program.
func unique(endpoint string) bool { return strings.HasPrefix(endpoint, "/endpoint") }

// owe says whether the program with an endpoint has to be told of a refusal.
func (m *model) owe(endpoint string, owed bool) {
	if m.life.dead {
		return
	}
	for _, p := range m.programs {
		p.unwanted = p.unwanted || owed && endpoint != "" && p.endpoints[endpoint]
		if unique(endpoint) && p.said.Endpoint == endpoint && (!owed || p.appearedAt <= m.life.walks[endpoint]) {
			p.owed, p.refused = owed, p.refused || owed
		}
	}
}

// staged sees that only what is registered is saved, as what it is.
func (m *model) staged(in plugin.Instance) {
	if m.life.dead {
		return
	}
	p := m.owners[in.Socket]
	if p == nil {
		m.complain("%+v is saved, and there is no such socket", in)
		return
	}
	m.ranks[in.ID] = p.rank
	if !p.announced[lane{in.Type, in.Name}] || !p.endpoints[in.Endpoint] {
		m.complain("program %d is saved as what it never was: %+v", p.number, in)
	}
	if !slices.ContainsFunc(m.life.callers, func(h *strict) bool {
		w := h.names[in.Name]
		return h.ptype == in.Type && w != nil && w.held == in.Endpoint
	}) {
		m.complain("%s of %s/%s is saved, and is not registered", in.Endpoint, in.Type, in.Name)
	}
	if !m.set.has("trust") || privileged(p.account) {
		return
	}
	if _, err := m.life.store.PluginForAlloc(in.Type, in.Name, in.ID); err == nil {
		return // the name is its own already
	}
	if p.account.UID > 60002 && in.Account.Known {
		m.complain("%+v is saved, and its user may not register it", in)
	}
	m.checkName(p, in)
	for _, o := range m.programs {
		if in.Type == "T" && o.pristine && o.account.Known && o.account.UID != p.account.UID &&
			o.valid.Type == in.Type && o.valid.Name == in.Name && in.Account.Known {
			m.complain("program %d takes the name of program %d, another user's", p.number, o.number)
		}
	}
}

// published sees that only what was saved and told is shown.
func (m *model) published(in plugin.Instance) {
	p := m.owners[in.Socket]
	m.note("registry: %s is published", in.ID)
	m.shown[in.ID] = true
	p.unwanted = m.life.handlers[in.Type] == nil || p.deaf || p.apiGone || p.withdrawn || p.infoErr != nil
	if !p.told && !m.set.has("keeps") {
		m.complain("%s of %s/%s is shown, and was not told", in.Endpoint, in.Type, in.Name)
	}
	if info := m.disk.has(lane{in.Type, in.Name}, in.ID); info == nil {
		m.complain("%s of %s/%s is shown, and is not on disk", in.Endpoint, in.Type, in.Name)
	}
	p.pristine = m.files[in.SocketPath] == p && m.life.told[in.SocketPath] == p.socket && !p.dead && m.disk.mode == "" && len(m.modes) == 0 && !m.misfit(in.SocketPath) &&
		p.infoErr == nil && p.notifyErr == nil && !p.hangs && !p.full && !p.deaf && !p.apiGone && !p.distrusted && !p.withdrawn &&
		p.info.Type == in.Type && p.info.Name == in.Name && validInfo(p.info) && m.life.handlers[in.Type] != nil && p.infoTakes == 0 &&
		(p.info.Endpoint == in.Endpoint || p.info.Endpoint == "" && in.Endpoint == in.SocketPath) && unique(in.Endpoint)
}

// removed sees that nothing is forgotten that lives, is the same, and was not refused. A removal may be tried again when it is there anew.
func (m *model) removed(ptype, name, id string) {
	in, was := m.life.instances[id]
	if !was || m.life.leaving[id] || !m.shown[id] {
		return
	}
	m.life.leaving[id] = true
	for _, o := range m.life.instances {
		// Its socket moved and was registered anew, and then the host ended before it could save that the earlier record is gone.
		if o.Socket == in.Socket && o.RegisteredAt.After(in.RegisteredAt) {
			return
		}
	}
	p := m.owners[in.Socket]
	path := ""
	if p != nil {
		path = m.pathOf(p.socket)
	}
	// Where a socket is that has moved has to be told within a moment.
	known := path != "" && (m.life.told[path] == p.socket || m.sim.elapsed-p.movedAt < 900*time.Millisecond)
	there := known && m.sim.elapsed-p.toldLate > 100*time.Millisecond
	if there && p.peer == in.Peer && !p.strange && p.remembered == (lane{in.Type, in.Name}) && !p.dead && !p.unwanted && !p.distrusted {
		m.complain("%s/%s %s is forgotten, and lives: program %d", ptype, name, id, p.number)
	}
}

// observed follows the events, which come with the reconciler locked.
func (l *life) observed(e plugin.Event) {
	m := l.m
	if l.dead {
		return
	}
	m.note("event: %s %s/%s %s at %s, %s: %s", e.Kind, e.Type, e.Name, e.Instance, e.SocketPath, e.Endpoint, e.Message)
	if e.Kind == plugin.EventDeregistered || e.Kind == plugin.EventUnreachable {
		defer m.forgive(lane{e.Type, e.Name})
	}
	switch e.Kind {
	case plugin.EventRegistered, plugin.EventRestored:
		l.open[e.Instance] = true
		m.takeName(l.instances[e.Instance])
		if _, err := l.store.PluginForAlloc(e.Type, e.Name, e.Instance); err != nil {
			m.complain("an event says that %s is %s: %v", e.Instance, e.Kind, err)
		}
		return
	case plugin.EventRefused:
		return
	case plugin.EventFailed:
		if strings.Contains(e.Message, "a stranger listens") || strings.Contains(e.Message, "is another user's") {
			m.complain("what is not trusted is no failure: %s", e.Message)
		}
		return
	case plugin.EventSuperseded:
		return // also of one that was never registered
	case plugin.EventUnlinked:
		if l.open[e.Instance] {
			m.complain("%q is missed without its socket, and is registered", e.Instance)
		}
		p := m.owners[l.instances[e.Instance].Socket]
		if p.dead && !p.strange && m.sim.elapsed-p.diedAt > 10*time.Millisecond {
			m.complain("%q is missed without its socket, and nobody listens", e.Instance)
		}
		return
	case plugin.EventDeregistered:
		defer delete(l.open, e.Instance)
		m.removed(e.Type, e.Name, e.Instance)
		m.keepName(l.instances[e.Instance], e.Message)
		l.awaitNext(e)
	case plugin.EventUpdated, plugin.EventUnreachable:
	case plugin.EventIgnored, plugin.EventReleased:
		return
	default: // of launched plugins and of hosts
	}
	if !l.open[e.Instance] {
		m.complain("event %s of %q, which is not registered", e.Kind, e.Instance)
	}
}

// forgive has those be tried at once who were refused a name.
func (m *model) forgive(key lane) {
	for _, p := range m.programs {
		if p.remembered == key {
			p.turnedDownAt, p.forgiven = -1, m.sim.elapsed
		}
	}
}

// awaitNext sees that who was refused while another one served is tried at once when that goes.
func (l *life) awaitNext(e plugin.Event) {
	m := l.m
	gone := m.owners[l.instances[e.Instance].Socket]
	for _, p := range m.programs {
		// One that was barred often waits long.
		if gone != nil && p != gone && p.barred > 8 && p.barredFrom == (lane{e.Type, e.Name}) && len(m.modes) == 0 && !p.told && !p.dead &&
			m.isFree(p, e) {
			l.expectAsk(p, e)
		}
		if gone == nil || p == gone || p.rank < gone.rank || !p.unfit && !p.unwelcome || p.turnedDownAt < 0 || p.turnedDown == 0 ||
			p.valid.Type != e.Type || p.valid.Name != e.Name || p.dead || p.told || p.owed || p.refusalTakes > 0 || p.notifyTakes > 0 ||
			m.sim.elapsed-p.turnedDown < 10*time.Millisecond || m.sim.elapsed-p.turnedDown > 20*time.Second || len(m.modes) > 0 ||
			e.Message == "its socket was replaced" || e.Message == "its socket did not survive the restart" || m.isBehind(p) {
			continue
		}
		l.expectAsk(p, e)
	}
}

// isFree says that nobody has, wants or keeps a name that a program was barred from when an instance goes.
func (m *model) isFree(p *program, e plugin.Event) bool {
	key := lane{e.Type, e.Name}
	k := m.kept[key]
	kept := k != nil && k.released == 0 && k.uid != p.account.UID && m.sim.elapsed <= k.until
	return !kept && !slices.ContainsFunc(m.programs, func(o *program) bool {
		return o != p && o.remembered == key && o.account.Known && o.account.UID != p.account.UID && m.pathOf(o.socket) != ""
	})
}

// isBehind says that a newer program of the name may be registered.
func (m *model) isBehind(p *program) bool {
	return slices.ContainsFunc(m.programs, func(o *program) bool {
		return o != p && o.rank > p.rank && o.remembered == p.remembered && !o.dead
	})
}

// expectAsk sees that a program is asked soon.
func (l *life) expectAsk(p *program, e plugin.Event) {
	m, asks, judged, path := l.m, p.asks, p.judged, l.m.pathOf(p.socket)
	if p.asking > 0 || p.infoErr != nil || !validInfo(p.said) {
		return // it is judged in any case, or was refused for something else since
	}
	m.sim.at(nil, 1500*time.Millisecond, func() {
		// One that was being asked, or waited for its turn, is judged, and may be refused anew, without being asked again.
		// As long as its handler does not return, it has not let go of the other one.
		if m.life != l || l.dead || l.busy[lane{e.Type, e.Name}] != "" || p.barred > 0 && !m.isFree(p, e) {
			return
		}
		if p.asks == asks && p.judged == judged && !p.told && !p.dead && path != "" && m.pathOf(p.socket) == path && m.seen(path) == p &&
			l.told[path] == p.socket && l.handlers[e.Type] != nil && !p.full && !p.distrusted {
			m.complain("program %d was not tried when %s went in whose favour it was refused", p.number, e.Instance)
		}
	})
}

// expectUrged sees that what failed, or is just being judged or told, is tried again soon after somebody asked for that.
func (l *life) expectUrged(ptype, name string) {
	m := l.m
	for _, s := range l.r.Plugins() {
		p := m.files[s.SocketPath]
		if ptype != "" && (s.Type != ptype || s.Name != name) || p == nil || p.asking > 0 || l.told[s.SocketPath] != p.socket {
			continue
		}
		failing := s.State == plugin.StateBackoff || s.State == plugin.StateRefused
		if !failing && s.State != plugin.StateValidating && s.State != plugin.StateRegistering {
			continue
		}
		dials, disturbances := p.dials, m.disturbances
		m.sim.at(nil, 5*time.Second, func() {
			if m.life != l || l.dead || m.disturbances != disturbances || l.handlers[s.Type] == nil || m.files[s.SocketPath] != p {
				return
			}
			for _, now := range l.r.Plugins() {
				waits := now.State == plugin.StateBackoff || now.State == plugin.StateRefused
				// Another instance may be at the path by then: the one that was listed had not been notified yet that its socket moved.
				same := now.SocketPath == s.SocketPath && now.Type == s.Type && now.Name == s.Name && now.FirstSeen.Equal(s.FirstSeen)
				if same && waits && now.NextRetry.After(l.pace.Now()) && p.dials == dials {
					m.complain("program %d was not tried again when somebody asked for that: %+v", p.number, now)
				}
			}
		})
	}
}

// checkGap sees that a name is given out as long as an instance is registered that nothing happened to.
func (m *model) checkGap() {
	for _, p := range m.programs {
		if !p.pristine {
			continue
		}
		if _, err := m.life.store.DispensePlugin(p.valid.Type, p.valid.Name); err != nil {
			m.complain("%s/%s is not given out although program %d is registered: %v", p.valid.Type, p.valid.Name, p.number, err)
			p.pristine = false
		}
	}
}

// checkGivenOut sees that what has no socket any more is not given out, whatever its handler does. What was replaced may be for a moment.
func (m *model) checkGivenOut() {
	for _, in := range m.life.store.Instances("", "") {
		known := m.life.instances[in.Info.AllocID]
		if in.State != dynamicplugins.InstanceUnreachable && known.ID != "" && m.pathOf(known.Socket) == "" {
			m.complain("%s of %s/%s is given out, and its socket is gone", in.Info.AllocID, in.Info.Type, in.Info.Name)
		}
	}
}
