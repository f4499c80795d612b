package reconciler_test

import (
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// keptName is what the model knows of a name whose last plugin went.
type keptName struct {
	uid uint32
	// since and released say when that began, and ended by request, by the model's count; began and until are times.
	since, released int
	began, until    time.Duration
	// wall is when it ends by the wall clock, which is what a restart goes by.
	wall time.Time
	// unsure: maybe it is not reserved. It may have been released before it was known, or another plugin may have been there.
	unsure bool
	// byRecord: it is not on the disk, on which there is an instance, and if that is gone it is kept anew.
	byRecord bool
	// takers are the other users who have had a plugin of it since. It is theirs then: a restart may find it kept for any of them.
	takers []uint32
}

// nameSlack is how much later the model may know of the end of a plugin: one whose socket was replaced is shown for a moment.
const nameSlack = 1200 * time.Millisecond

// keepsNames says whether the names of somebody's plugins are kept.
func (m *model) keepsNames(in plugin.Instance) bool {
	return m.set.has("trust") && m.set.duration("namegrace") > 0 && in.Type == "T" && in.Account.Known
}

// keepName has the name of an instance that goes be its user's, if that was the last of the name. One that was replaced went a moment before.
func (m *model) keepName(in plugin.Instance, why string) {
	if !m.keepsNames(in) {
		return
	}
	grace, key := m.set.duration("namegrace"), lane{in.Type, in.Name}
	k := m.kept[key]
	if k != nil && k.byRecord {
		delete(m.kept, key)
	}
	others, there := m.life.others(in, func(uint32) bool { return true })
	replaced := why == "its socket was replaced"
	if there && !replaced {
		m.spared[key] = m.sim.elapsed
		return
	}
	// Who is refused is removed when that is on the disk.
	late := replaced || strings.HasPrefix(why, "plugin ") || strings.HasPrefix(why, "not admitted") || strings.HasPrefix(why, "no handler ")
	recent := func(at time.Duration) bool { return at > 0 && m.sim.elapsed-at < nameSlack }
	unsure := others || recent(m.letGo[key]) || late && (recent(m.clockSet) || recent(m.spared[key]) || k != nil && k.uid != in.Account.UID && recent(k.began))
	m.count++
	m.kept[key] = &keptName{
		uid: in.Account.UID, since: m.count, began: m.sim.elapsed, until: m.sim.elapsed + grace, wall: m.sim.Now().Round(0).Add(grace),
		unsure: unsure,
	}
}

// takeName takes over that an instance has a name that may be kept for another user.
func (m *model) takeName(in plugin.Instance) {
	if k := m.kept[lane{in.Type, in.Name}]; k != nil && in.Account.Known && in.Account.UID != k.uid {
		k.takers = append(k.takers, in.Account.UID)
	}
}

// others says whether there are other instances of the name of one whose users are known and match, and whether the socket of any is there.
func (l *life) others(than plugin.Instance, matches func(uid uint32) bool) (are, there bool) {
	for id := range l.open {
		in := l.instances[id]
		if id == than.ID || !in.Account.Known || !matches(in.Account.UID) || in.Type != than.Type || in.Name != than.Name {
			continue
		}
		path := l.m.pathOf(in.Socket)
		are, there = true, there || path != "" && l.told[path] == in.Socket
	}
	return are, there
}

// checkName sees that nobody is registered under a name that is kept for somebody else. Whoever answered before that began had a right to
// it.
func (m *model) checkName(p *program, in plugin.Instance) {
	k := m.kept[lane{in.Type, in.Name}]
	if k == nil || k.unsure || k.uid == p.account.UID || k.released > 0 || p.heardAt < k.since || m.sim.elapsed > k.until-nameSlack ||
		p.account.Launched && p.account.Name == in.Name ||
		m.life.hasName(lane{in.Type, in.Name}, func(uid uint32) bool { return uid == p.account.UID }) {
		return
	}
	m.complain("program %d is saved under %s/%s, which is reserved for user %d", p.number, in.Type, in.Name, k.uid)
}

// hasName says whether a plugin of a name is registered whose user matches.
func (l *life) hasName(key lane, matches func(uid uint32) bool) bool {
	for id := range l.open {
		if in := l.instances[id]; in.Type == key.ptype && in.Name == key.name && matches(in.Account.UID) {
			return true
		}
	}
	return false
}

// toldOfName sees that a program is refused only a name that is kept for another one.
func (m *model) toldOfName(p *program, reason string) {
	p.waitsFor = lane{}
	if !strings.Contains(reason, " is reserved for user ") {
		return
	}
	key := lane{p.said.Type, p.said.Name}
	p.waitsFor = key
	if _, there := m.life.others(plugin.Instance{Type: key.ptype, Name: key.name}, func(uid uint32) bool {
		return uid == p.account.UID
	}); there && p.owns {
		m.complain("program %d is refused a name that is its user's: %s", p.number, reason)
	}
	if m.life.hasName(key, func(uid uint32) bool { return uid != p.account.UID }) {
		return // one that was replaced is shown for a moment
	}
	k := m.kept[key]
	if k != nil && k.unsure || m.sim.elapsed-p.heardFor > 100*time.Millisecond {
		return // it takes its time to hear of it
	}
	if k == nil || k.uid == p.account.UID || k.released > 0 && p.heardAt > k.released || p.heardFor > k.until+100*time.Millisecond {
		m.complain("program %d is refused a name that is not reserved else: %s; known is %+v", p.number, reason, k)
	}
}

// released takes over that a name is let go of: whoever waits for it is tried at once.
func (l *life) released(key lane) {
	m := l.m
	m.letGo[key] = m.sim.elapsed
	k := m.kept[key]
	if k == nil || k.unsure || k.released > 0 || m.sim.elapsed > k.until-nameSlack {
		return
	}
	m.count++
	k.released = m.count
	for _, p := range m.programs {
		if p.waitsFor == key && len(m.modes) == 0 && !p.told && !p.dead && p.refusalTakes == 0 {
			l.expectAsk(p, plugin.Event{Type: key.ptype, Name: key.name, Instance: "the name"})
		}
	}
}

// rememberNames has the model know which names a host remembers that starts: those on the disk. A name of which the disk knows nothing is
// that of an instance which is there.
func (m *model) rememberNames(restored []plugin.Instance) {
	m.count++
	now, grace := m.sim.Now().Round(0), m.set.duration("namegrace")
	for key, k := range m.kept {
		saved, is := m.disk.names[key]
		own := saved.Until.Sub(k.wall).Abs() < nameSlack || m.clockSet > k.began || saved.Until.After(k.wall) // he had another plugin
		is = is && (saved.Owner.UID == k.uid && own || slices.Contains(k.takers, saved.Owner.UID))
		k.byRecord = slices.ContainsFunc(restored, func(in plugin.Instance) bool {
			return in.Type == key.ptype && in.Name == key.name && in.Account.Known && in.Account.UID == k.uid
		})
		if m.set.has("changes") && !is && !k.byRecord && k.released == 0 && !k.unsure && m.sim.elapsed < k.until-nameSlack {
			m.complain("%v is reserved for user %d, and forgotten by a restart: on the disk is %+v", key, k.uid, saved)
		}
		if is || !k.byRecord {
			delete(m.kept, key)
		}
	}
	for key, saved := range m.disk.names {
		if left := min(saved.Until.Sub(now), grace); left > 0 && m.kept[key] == nil {
			m.kept[key] = &keptName{uid: saved.Owner.UID, since: m.count, until: m.sim.elapsed + left, wall: saved.Until}
		}
	}
}

// keep takes over for whom a name is reserved.
func (d *simDisk) keep(name *plugin.Reservation) {
	if name == nil {
		return
	}
	key := lane{name.Plugin.Type, name.Plugin.Name}
	if name.Until.IsZero() {
		delete(d.names, key)
		return
	}
	saved := *name
	saved.Until = saved.Until.Round(0) // a disk knows nothing of the clock of a process
	saved.Owner = plugin.Account{UID: name.Owner.UID, GID: name.Owner.GID, Known: true}
	d.names[key] = saved
}

// Reserve implements [reconciler.Registry].
func (r simRegistry) Reserve(name plugin.Reservation) {
	r.l.m.note("registry: %s is reserved for user %d until %v", name.Plugin, name.Owner.UID, name.Until.Round(0))
	r.real.Reserve(name)
}

// SaveReservation implements [reconciler.Registry].
func (r simRegistry) SaveReservation(name plugin.Name) error {
	if r.l.dead {
		return errKilled
	}
	r.l.m.did("keep")
	r.l.linger()
	return r.real.SaveReservation(name)
}
