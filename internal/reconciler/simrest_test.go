package reconciler_test

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
)

// settled says what is wrong in a world without disturbances.
func (m *model) settled() {
	l := m.life
	statuses := l.r.Plugins()
	byPath := map[string]plugin.Status{}
	for _, s := range statuses {
		if s.State == plugin.StateUnlinked {
			// It has no socket, and nobody who is registered has taken its place.
			if slices.ContainsFunc(statuses, func(other plugin.Status) bool {
				return other.Type == s.Type && other.Name == s.Name && other.State == plugin.StateRegistered
			}) {
				m.complain("%s is unlinked, and %s/%s is registered", s.SocketPath, s.Type, s.Name)
			}
			if !slices.ContainsFunc(m.programs, func(p *program) bool {
				return !p.dead && p.endpoints[s.SocketPath] && m.pathOf(p.socket) == ""
			}) {
				m.complain("%s is unlinked, and nobody serves it", s.SocketPath)
			}
			continue
		}
		byPath[s.SocketPath] = s
		if m.files[s.SocketPath] == nil {
			m.complain("%s has no socket and is %s", s.SocketPath, s.State)
		}
	}
	living := map[lane][]string{} // paths
	for _, path := range slices.Sorted(maps.Keys(m.files)) {
		p := m.files[path]
		s, known := byPath[path]
		switch {
		case !known:
			m.complain("%s is not known", path)
		case p.dead:
			m.checkDead(path, s)
		default:
			// Whose socket moved while it was told is asked again, and may be left alone then.
			if p.owed && s.State != plugin.StateIgnored && !m.misfit(path) {
				m.complain("%s was never told that it was refused: %+v", path, p.said)
			}
			key := lane{p.valid.Type, p.valid.Name}
			if l.handlers[key.ptype] != nil && !validInfo(p.said) {
				m.complain("%s said %+v and was not asked again", path, p.said)
			}
			living[key] = append(living[key], path)
		}
	}
	want := map[string]bool{} // the paths of those that are to be current
	for _, key := range slices.SortedFunc(maps.Keys(living), func(a, b lane) int {
		return cmp.Or(cmp.Compare(a.ptype, b.ptype), cmp.Compare(a.name, b.name))
	}) {
		if current := m.checkLane(key, living[key], byPath); current != "" {
			want[current] = true
		}
	}
	for _, s := range statuses {
		if (s.State == plugin.StateRegistered) != want[s.SocketPath] && s.State != plugin.StateUnlinked {
			m.complain("%s is %s; that it is to be registered is %t", s.SocketPath, s.State, want[s.SocketPath])
		}
	}
	for _, s := range l.r.Refusals() {
		if s.State != plugin.StateRefused || s.LastError == "" || slices.ContainsFunc(statuses, func(o plugin.Status) bool {
			return o.Type == s.Type && o.Name == s.Name && o.State == plugin.StateRegistered && o.Since.After(s.Since)
		}) {
			m.complain("it is remembered of a name that is registered, or without a reason, that it was refused: %+v", s)
		}
	}
	m.checkHandlers(living)
	m.checkRecords(statuses)
	if l.conns != 0 {
		m.complain("%d connections are open", l.conns)
	}
}

// vanish has everything end, and sees that nothing is left of it.
func (m *model) vanish() {
	if len(m.wrong) > 0 {
		return
	}
	m.note("the end of everything")
	for _, p := range m.programs {
		m.kill(p)
	}
	for _, path := range slices.Sorted(maps.Keys(m.files)) {
		m.unlink(path)
	}
	m.sim.pass(time.Minute)
	m.life.checkMirror()
	left := m.life.r.Plugins()
	shown := slices.DeleteFunc(m.life.store.Instances("", ""), func(in dynamicplugins.Instance) bool {
		return in.State == dynamicplugins.InstanceUnreachable && isRole(in.Info) // for the next start to remove
	})
	if len(left)+len(m.disk.instances())+len(shown)+m.life.r.Size() > 0 {
		m.complain("of everything that ended is left: %+v, on disk %v, in the registry %s, and %d in memory", left, m.disk.instances(),
			keysOf(m.life.mirror), m.life.r.Size())
	}
}

// misfit says that the program at a path is always refused.
func (m *model) misfit(path string) bool {
	p := m.files[path]
	modern := m.set.has("modern") && m.set.has("dirs") && !m.set.has("plain")
	return (p.unfit || p.unwelcome) && p.valid.Endpoint != "/shared" || deprecated(path) && modern
}

// checkDead looks at a socket that nobody serves. Who was refused for want of a handler is not watched.
func (m *model) checkDead(path string, s plugin.Status) {
	switch {
	case s.Instance != "" || s.Current:
	case s.State == plugin.StateRefused, s.State == plugin.StateIgnored:
		return
	case s.State == plugin.StateUnreachable, s.State == plugin.StateBackoff, s.State == plugin.StateConnecting:
		return
	}
	m.complain("%s is dead and is %+v", path, s)
}

// barred says that the user of a program may not register it, as things are: because of its type, or because others have the name.
func (m *model) barred(key lane, path string, others []string) (barred, allowed bool) {
	p := m.files[path]
	if !m.set.has("trust") || privileged(p.account) {
		return false, true
	}
	if p.account.UID > 60002 {
		return true, true
	}
	for _, other := range others {
		o := m.files[other]
		if o != p && o.account.Known && o.account.UID != p.account.UID && key.ptype != "U" {
			return false, false // it depends on who came first
		}
	}
	return false, true
}

// checkLane looks at the living programs of one name, and returns the path of the one that is to be current.
func (m *model) checkLane(key lane, paths []string, byPath map[string]plugin.Status) (current string) {
	slices.SortFunc(paths, func(a, b string) int { return cmp.Compare(m.files[b].rank, m.files[a].rank) })
	handled := m.life.handlers[key.ptype] != nil
	var in []string // those who may stand for the name, as it is
	for _, path := range paths {
		s := byPath[path]
		if s.Type != key.ptype || s.Name != key.name {
			m.complain("%s said that it is %v and is %s/%s", path, key, s.Type, s.Name)
		}
		if s.Instance != "" && s.Instance == m.files[path].lost {
			m.complain("%s is still instance %s, though another process serves it", path, s.Instance)
		}
		barred, sure := m.barred(key, path, paths)
		switch {
		case barred && sure, !sure && s.State == plugin.StateRefused && handled:
			m.checkOut(path, s, plugin.StateRefused)
			if !sure && !slices.ContainsFunc(paths, func(o string) bool { return byPath[o].Instance != "" || m.misfit(o) }) {
				m.complain("%s is refused the name, which nobody has: %+v", path, s)
			}
		case handled && m.misfit(path) && s.State == plugin.StateSuperseded:
			if !slices.ContainsFunc(paths, func(o string) bool { return m.files[o].rank > m.files[path].rank && !m.misfit(o) }) {
				m.complain("%s rests behind nobody: %+v", path, s)
			}
		case handled && m.misfit(path):
			m.checkOut(path, s, plugin.StateBackoff)
		default:
			in = append(in, path)
		}
	}
	for i, path := range in {
		s := byPath[path]
		want := plugin.StateSuperseded
		switch {
		case !handled && m.set.has("ignores"):
			want = plugin.StateIgnored
		case !handled:
			want = plugin.StateRefused
		case i == 0:
			want, current = plugin.StateRegistered, path
		}
		if s.State != want || s.Current != (path == current) || s.Instance != "" && !handled ||
			s.LastError != "" != (want == plugin.StateRefused) {
			m.complain("%s, number %d of %v, is not %s: %+v", path, i, key, want, s)
		}
		m.checkShown(s)
	}
	if current != "" {
		m.checkCurrent(key, current, byPath[current])
	}
	return current
}

// checkOut looks at one that must not be registered.
func (m *model) checkOut(path string, s plugin.Status, want plugin.State) {
	if m.set.has("ignores") && m.life.handlers[s.Type] == nil {
		want = plugin.StateIgnored
	}
	if s.State != want && want != plugin.StateBackoff || s.Current || s.Instance != "" ||
		s.LastError == "" && want != plugin.StateIgnored {
		m.complain("%s is not to be registered: %+v", path, s)
	}
}

// checkCurrent looks at the current one of a name.
func (m *model) checkCurrent(key lane, path string, s plugin.Status) {
	p := m.files[path]
	endpoint := cmp.Or(p.valid.Endpoint, path)
	if w := m.life.handlers[key.ptype].names[key.name]; s.Endpoint != endpoint || w == nil || w.held != endpoint {
		m.complain("%s has the endpoint %q; status says %q, and the handler has %+v", path, endpoint, s.Endpoint, w)
	}
	if !p.told {
		m.complain("%s was not told that it is registered", path)
	}
	for _, ptype := range append([]string{key.ptype}, s.Registration.Roles...) {
		of := m.life.store.Instances(ptype, key.name)
		if ptype == key.ptype && (len(of) == 0 || of[0].Info.AllocID != s.Instance || of[0].State != dynamicplugins.InstanceRegistered) {
			m.complain("the registry has %v of %v and not the current %s in front", of, key, s.Instance)
		}
		client, err := m.life.store.DispensePlugin(ptype, key.name)
		if info, _ := client.(*pluginInfo); err != nil || ptype == key.ptype && info.AllocID != s.Instance {
			m.complain("%s of %v is current, and dispensed is %+v, %v", s.Instance, key, info, err)
		}
		if _, err := m.life.store.PluginForAlloc(ptype, key.name, s.Instance); err != nil {
			m.complain("%s is not in its role %s: %v", s.Instance, ptype, err)
		}
	}
}

// checkShown sees that what is registered is given out, with the endpoint that it has.
func (m *model) checkShown(s plugin.Status) {
	for _, in := range m.life.store.Instances(s.Type, s.Name) {
		if in.Info.AllocID != s.Instance || s.Instance == "" {
			continue
		}
		if shown := in.State != dynamicplugins.InstanceUnreachable; shown != (in.Info.ConnectionInfo.SocketPath == s.Endpoint) {
			m.complain("that it is given out is %t: %+v, saved as %+v", shown, s, in)
		}
	}
}

// checkHandlers sees that handlers have what is there and nothing else.
func (m *model) checkHandlers(living map[lane][]string) {
	for _, h := range m.life.callers {
		for _, name := range slices.Sorted(maps.Keys(h.names)) {
			w, key := h.names[name], lane{h.ptype, name}
			if running := m.life.busy[key]; running != "" {
				m.complain("%s(%s) still runs", running, name)
			}
			if w.held != "" && (m.life.handlers[h.ptype] != h || living[key] == nil) {
				m.complain("a handler still has %s of %v", w.held, key)
			}
			if m.set.has("plain") {
				continue
			}
			if len(w.given) > max(1, len(living[key])) || w.held == "" && len(w.given) > 0 {
				m.complain("a handler was not told which of %v are gone; %d of %v are alive", w.given, len(living[key]), key)
			}
		}
	}
}

// checkRecords sees that the registry, the disk and the events agree with the status.
func (m *model) checkRecords(statuses []plugin.Status) {
	known := []string{}
	for _, s := range statuses {
		if s.Instance != "" {
			known = append(known, s.Instance)
		}
	}
	slices.Sort(known)
	shown := []string{}
	for _, in := range m.life.store.Instances("", "") {
		switch role := isRole(in.Info); {
		case !role:
			shown = append(shown, in.Info.AllocID)
		case !slices.Contains(known, in.Info.AllocID) && in.State != dynamicplugins.InstanceUnreachable:
			m.complain("the registry has role %s of %s, which is gone", in.Info.Type, in.Info.AllocID)
		}
	}
	slices.Sort(shown)
	open := slices.Sorted(maps.Keys(m.life.open))
	if saved := m.disk.instances(); !slices.Equal(known, shown) || !slices.Equal(known, saved) || !slices.Equal(known, open) {
		m.complain("recorded are %v; shown %v, on disk %v, open in the events %v", known, shown, saved, open)
	}
}

// isRole says that an entry of the registry is a role of an instance, and not the instance itself.
func isRole(info *dynamicplugins.PluginInfo) bool {
	return info.IsRole()
}
