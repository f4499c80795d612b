package reconciler_test

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/reconciler"
)

// What is called by the world here, or begins with what a plugin says, has the world locked.

// valid says that an announcement is.
func valid(info reconciler.Info) bool { return info.Name != "" && len(info.Versions) <= 64 }

// said takes over what a plugin says of itself.
func (m *model) said(p *plugin, f *fate, info reconciler.Info) {
	if !valid(info) {
		return
	}
	key := lane{info.Type, info.Name}
	another := f.record != nil && (f.record.Peer != p.peer || p.peer == reconciler.Peer{})
	if another {
		f.lost = f.record.ID
	}
	if f.found > 0 {
		newer := slices.DeleteFunc(slices.Clone(m.before[key]), func(known before) bool { return known.birth <= p.socket.Birth })
		if len(newer) > 0 {
			limit, below := newer[0].rank, 0.0
			for _, known := range newer {
				limit = min(limit, known.rank)
			}
			for _, known := range m.before[key] {
				if known.rank < limit {
					below = max(below, known.rank)
				}
			}
			f.rank = limit - (limit-below)/float64(f.found+1)
		}
		f.found = 0
	}
	f.record, f.remembered, f.said = nil, key, info
}

// told sees that a plugin is told what is so.
func (m *model) told(p *plugin, f *fate, registered bool, reason string) {
	switch {
	case registered:
		if !slices.ContainsFunc(m.callers, func(h *strict) bool {
			w := h.names[p.said.Name]
			return h.ptype == p.said.Type && w != nil && w.held != "" && f.endpoints[w.held]
		}) {
			m.complain("%+v is told that it is registered, and is not", p.said)
		}
		if !slices.ContainsFunc(m.saved, func(in reconciler.Instance) bool {
			return in.Type == p.said.Type && in.Name == p.said.Name && f.endpoints[in.Endpoint]
		}) {
			m.complain("%+v is told that it is registered, and is not on disk", p.said)
		}
		return
	case strings.Contains(reason, "patience"), strings.Contains(reason, "unavailable"), strings.Contains(reason, "disk full"):
		m.complain("%+v is told off for what is not its fault: %s", p.said, reason)
	case strings.HasPrefix(reason, "the plugin announces "):
		if valid(p.said) {
			m.complain("%+v is told off for its announcement: %s", p.said, reason)
		}
	case strings.HasPrefix(reason, "plugin validation failed: "), strings.HasPrefix(reason, "not admitted: "),
		strings.HasPrefix(reason, "plugin registration failed: "):
		if !f.refused && unique(p.said.Endpoint) {
			m.complain("%+v is told off without a cause: %s", p.said, reason)
		}
	case !strings.HasPrefix(reason, "no handler registered for plugin type: "+p.said.Type):
		m.complain("%+v is told off: %s", p.said, reason)
	}
	f.owed = false
}

// unique says that an endpoint names one plugin.
func unique(endpoint string) bool { return strings.HasPrefix(endpoint, "/endpoint") }

// owe says whether the plugin with an endpoint has to be told of a refusal. It locks the world.
func (m *model) owe(endpoint string, owed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for p, f := range m.fates {
		f.unwanted = f.unwanted || owed && endpoint != "" && f.endpoints[endpoint]
		if unique(endpoint) && p.said.Endpoint == endpoint {
			f.owed, f.refused = owed, f.refused || owed
		}
	}
}

// staged sees that only what is registered is saved.
func (m *model) staged(in reconciler.Instance) {
	for p, f := range m.fates {
		if p.socket == in.Socket {
			m.ranks[in.ID] = f.rank
		}
	}
	if !slices.ContainsFunc(m.callers, func(h *strict) bool {
		w := h.names[in.Name]
		return h.ptype == in.Type && w != nil && w.held == in.Endpoint
	}) {
		m.complain("%s of %s/%s is saved, and is not registered", in.Endpoint, in.Type, in.Name)
	}
}

// published sees that only what was told is shown.
func (m *model) published(in reconciler.Instance) {
	for _, p := range m.plugins {
		if p.socket != in.Socket {
			continue
		}
		m.fates[p].unwanted = m.handlers[in.Type] == nil
		if !p.told && !m.keeps {
			m.complain("%s of %s/%s is shown, and was not told", in.Endpoint, in.Type, in.Name)
		}
	}
}

// removed sees that nothing is forgotten that lives, is the same, and was not refused. A removal may be tried again when it is there anew.
func (m *model) removed(in reconciler.Instance) {
	if m.leaving[in.ID] {
		return
	}
	m.leaving[in.ID] = true
	for _, p := range m.plugins {
		f := m.fates[p]
		same := p.socket == in.Socket && p.peer == in.Peer && !p.strange && f.remembered == lane{in.Type, in.Name}
		if same && !p.dead && !f.unwanted {
			m.complain("%+v is forgotten, and lives", in)
		}
	}
}

// observed follows the events, which come with the reconciler locked.
func (m *model) observed(e reconciler.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch e.Kind {
	case reconciler.EventRegistered, reconciler.EventRestored:
		m.open[e.Instance] = true
		return
	case reconciler.EventRefused, reconciler.EventFailed:
		return
	case reconciler.EventSuperseded:
		return // also of one that was never registered
	case reconciler.EventUnlinked:
		if m.open[e.Instance] {
			m.complain("%q is missed without its socket, and is registered", e.Instance)
		}
		return
	case reconciler.EventDeregistered:
		defer delete(m.open, e.Instance)
	case reconciler.EventUpdated, reconciler.EventUnreachable, reconciler.EventIgnored:
	}
	if !m.open[e.Instance] {
		m.complain("event %s of %q, which is not registered", e.Kind, e.Instance)
	}
}

// checkGivenOut sees that what has no socket any more is not given out, whatever its handler does. What was replaced may be for a moment.
func (m *model) checkGivenOut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, in := range m.saved {
		shown := slices.Contains(m.registry[in.Name], in.ID) && !m.unreachable[in.ID]
		if shown && !slices.ContainsFunc(slices.Collect(maps.Values(m.plugins)), func(p *plugin) bool { return p.socket == in.Socket }) {
			m.complain("%+v is given out, and its socket is gone", in)
		}
	}
}

// settled says what is wrong in a world without disturbances.
func (m *model) settled() {
	statuses := m.r.Plugins()
	m.mu.Lock()
	defer m.mu.Unlock()
	byPath := map[string]reconciler.Status{}
	for _, s := range statuses {
		if s.State == reconciler.StateUnlinked {
			// It has no socket, and nobody who is registered has taken its place.
			if slices.ContainsFunc(statuses, func(other reconciler.Status) bool {
				return other.Type == s.Type && other.Name == s.Name && other.State == reconciler.StateRegistered
			}) {
				m.complain("%s is unlinked, and %s/%s is registered", s.SocketPath, s.Type, s.Name)
			}
			continue
		}
		byPath[s.SocketPath] = s
		if m.plugins[s.SocketPath] == nil {
			m.complain("%s has no socket and is %s", s.SocketPath, s.State)
		}
	}
	living := map[lane][]string{} // paths
	for path, p := range m.plugins {
		s, known := byPath[path]
		switch {
		case !known:
			m.complain("%s is not known", path)
		case p.dead:
			m.checkDead(path, s)
		default:
			if m.fates[p].owed {
				m.complain("%s was never told that it was refused: %+v", path, p.said)
			}
			said := m.fates[p].said
			key := lane{said.Type, said.Name}
			if m.handlers[key.ptype] != nil && !valid(p.said) {
				m.complain("%s said %+v and was not asked again", path, p.said)
			}
			living[key] = append(living[key], path)
		}
	}
	current := []string{}
	for key, paths := range living {
		slices.SortFunc(paths, func(a, b string) int {
			return cmp.Compare(m.fates[m.plugins[b]].rank, m.fates[m.plugins[a]].rank)
		})
		if m.handlers[key.ptype] != nil {
			current = append(current, paths[0])
		}
		m.checkLane(key, paths, byPath)
	}
	registered := []string{}
	for _, s := range statuses {
		if s.State == reconciler.StateRegistered {
			registered = append(registered, s.SocketPath)
		}
	}
	slices.Sort(registered)
	if slices.Sort(current); !slices.Equal(current, registered) {
		m.complain("registered are %v and not %v", registered, current)
	}
	m.checkHandlers(living)
	m.checkRecords(statuses)
}

// checkDead looks at a socket that nobody serves. Who was refused for want of a handler is not watched.
func (m *model) checkDead(path string, s reconciler.Status) {
	switch {
	case s.Instance != "" || s.Current:
	case s.State == reconciler.StateRefused && m.handlers[s.Type] == nil:
		return
	case s.State == reconciler.StateUnreachable, s.State == reconciler.StateBackoff, s.State == reconciler.StateConnecting:
		return
	}
	m.complain("%s is dead and is %+v", path, s)
}

// checkLane looks at the living plugins of one name, the one to be preferred first.
func (m *model) checkLane(key lane, paths []string, byPath map[string]reconciler.Status) {
	for i, path := range paths {
		s, p := byPath[path], m.plugins[path]
		if lost := m.fates[p].lost; lost != "" && s.Instance == lost {
			m.complain("%s is still instance %s, though another process serves it", path, lost)
		}
		if s.Type != key.ptype || s.Name != key.name {
			m.complain("%s said that it is %v and is %s/%s", path, key, s.Type, s.Name)
		}
		want, isCurrent := reconciler.StateSuperseded, false
		switch {
		case m.handlers[key.ptype] == nil:
			want = reconciler.StateRefused
		case i == 0:
			want, isCurrent = reconciler.StateRegistered, true
		}
		if s.State != want || s.Current != isCurrent || s.Instance != "" && want == reconciler.StateRefused || s.LastError != "" != (want == reconciler.StateRefused) {
			m.complain("%s, number %d of %v, is not %s: %+v", path, i, key, want, s)
		}
		m.checkShown(s)
		if !isCurrent {
			continue
		}
		endpoint := cmp.Or(m.fates[p].said.Endpoint, path)
		if w := m.handlers[key.ptype].names[key.name]; s.Endpoint != endpoint || w == nil || w.held != endpoint {
			m.complain("%s has the endpoint %q; status says %q, and the handler has %+v", path, endpoint, s.Endpoint, w)
		}
		if !p.told {
			m.complain("%s was not told that it is registered", path)
		}
		ofLane := slices.DeleteFunc(slices.Clone(m.registry[key.name]), func(id string) bool { return m.saved[m.find(id)].Type != key.ptype })
		if len(ofLane) == 0 || ofLane[0] != s.Instance {
			m.complain("the registry has %v of %v and not the current %s in front", ofLane, key, s.Instance)
		}
	}
}

// checkShown sees that what is registered is given out, with the endpoint that it has.
func (m *model) checkShown(s reconciler.Status) {
	at := m.find(s.Instance)
	if at < 0 {
		return
	}
	if shown := !m.unreachable[s.Instance]; shown != (m.saved[at].Endpoint == s.Endpoint) {
		m.complain("that it is given out is %t: %+v, saved as %+v", shown, s, m.saved[at])
	}
}

// checkHandlers sees that handlers have what is there and nothing else.
func (m *model) checkHandlers(living map[lane][]string) {
	for _, h := range m.callers {
		for name, w := range h.names {
			key := lane{h.ptype, name}
			if running := m.busy[key]; running != "" {
				m.complain("%s(%s) still runs", running, name)
			}
			if w.held != "" && (m.handlers[h.ptype] != h || living[key] == nil) {
				m.complain("a handler still has %s of %v", w.held, key)
			}
			if len(w.given) > max(1, len(living[key])) || w.held == "" && len(w.given) > 0 {
				m.complain("a handler was not told which of %v are gone; %d of %v are alive", w.given, len(living[key]), key)
			}
		}
	}
}

// checkRecords sees that the registry, the disk and the events agree with the status.
func (m *model) checkRecords(statuses []reconciler.Status) {
	known := map[string]bool{}
	for _, s := range statuses {
		if s.Instance != "" {
			known[s.Instance] = true
		}
	}
	shown := 0
	for name, ids := range m.registry {
		for _, id := range ids {
			shown++
			if !known[id] {
				m.complain("the registry has %s of %s, which is gone", id, name)
			}
		}
	}
	if shown != len(known) || len(m.saved) != len(known) || len(m.open) != len(known) {
		m.complain("%d instances are recorded; %d are shown, %d on disk, %d open in the events", len(known), shown, len(m.saved), len(m.open))
	}
	for _, in := range m.saved {
		if !known[in.ID] {
			m.complain("on disk is %+v, which is gone", in)
		}
	}
}
