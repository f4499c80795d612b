package reconciler_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// program is one plugin of a simulation, and what the model knows of it.
type program struct {
	number  int
	socket  plugin.SocketID
	info    plugin.Info
	peer    plugin.Peer
	account plugin.Account

	infoErr, notifyErr error
	// infoTakes and notifyTakes are how long its answers take, refusalTakes that to a refusal.
	infoTakes, notifyTakes, refusalTakes time.Duration
	exitsWhenRefused                     bool          // it ends inside the call
	hangs                                bool          // in GetInfo
	full                                 bool          // it accepts no more for the moment
	dead, outlived                       bool          // nobody accepts; its process lives on
	hidden                               bool          // its process cannot be watched
	listens                              time.Duration // it accepts from then on
	strange                              bool          // its process cannot be seen
	distrusted                           bool          // nobody trusts who listens there
	withdrawn                            bool          // its socket is not trusted
	deaf, apiGone                        bool          // nobody accepts on its endpoint; that does not exist
	unfit, unwelcome                     bool          // its handler never validates it; it validates and never registers it
	watched                              bool          // its handler asks for its endpoint to be watched
	watchers                             []*watcher

	// said is what it answered last, and told whether it was told last that it is registered. asks counts how often it was asked.
	said plugin.Info
	told bool
	asks int
	// asking counts the attempts to ask it that are under way.
	asking int
	// heardAt is when it answered last by the model's count, and heardFor by the clock; waitsFor is a name that it was refused then because it
	// is kept for another user.
	heardAt  int
	heardFor time.Duration
	waitsFor lane
	// owns: a plugin of its user had its name when it answered.
	owns bool
	// judged counts what can lead to a refusal: valid answers, and walks that began.
	judged int
	fate
}

// watcher is somebody who waits for the end of a program.
type watcher struct {
	of   *life
	hint func()
	exit bool // of the process, and not before
}

// fate is what the model knows of a program.
type fate struct {
	// rank is greater for the instance that is to be preferred.
	rank float64
	// found is its number among those that were there at a restart, if it is not remembered: it does not come before those that were and
	// were born later. It is zero otherwise.
	found int
	// record is what was remembered, until it has answered; remembered is its type and name, as long as it counts.
	record     *plugin.Instance
	remembered lane
	// valid is the last valid announcement.
	valid plugin.Info
	// lost is the instance as which it was remembered, if another process serves its socket since the restart.
	lost string
	// endpoints are all under which it may have been registered, announced what it may have announced itself as.
	endpoints map[string]bool
	announced map[lane]bool
	// owed says that it has to be told of a refusal, refused that there was one, unwanted that there was one, or no handler, since it
	// was registered last.
	owed, refused, unwanted bool
	// toldLate is when it was told where it is after that had been held back.
	toldLate time.Duration
	// movedAt is when its socket moved last, goneAt when it was told that it is gone, diedAt when it ended, reachedAt when it was seen where
	// it is, missedAt when it was looked for there and was elsewhere, appearedAt when it was told of as a new one.
	movedAt, goneAt, diedAt, reachedAt, missedAt, appearedAt time.Duration
	// dials counts those of its socket.
	dials int
	// pristine: it was registered, and nothing has happened since for which it might not be given out.
	pristine bool
	// turnedDown is when its handler did that last while another instance served, amid how many disturbances.
	turnedDown   time.Duration
	turnedDownAt int
	forgiven     time.Duration // when others of its name left last
	// barred counts how often in a row it was barred from a name, before its last answer and now.
	barredBefore, barred int
	barredFrom           lane
}

func deprecated(path string) bool { return strings.HasPrefix(path, "/old/") }

// heal has a program behave.
func (p *program) heal() {
	p.infoTakes, p.notifyTakes, p.hangs, p.infoErr, p.notifyErr = 0, 0, false, nil, nil
	p.full, p.distrusted, p.withdrawn, p.deaf, p.apiGone = false, false, false, false, false
	if p.info.Name == "" {
		p.info.Name = "foo"
	}
	p.info.Type, _, _ = strings.Cut(p.info.Type, "/")
	if p.info.Endpoint != "" && !strings.HasPrefix(p.info.Endpoint, "/") {
		p.info.Endpoint = ""
	}
	p.info.Versions = p.info.Versions[:min(len(p.info.Versions), 1)]
	p.announced[lane{p.info.Type, p.info.Name}] = true
}

// make puts a program on a socket.
func (m *model) make(s step, how, endpoint string) {
	p := &program{
		number: len(m.programs) + 1, info: plugin.Info{Type: s.Type, Name: s.Name, Endpoint: endpoint, Versions: []string{"v1"}},
		account: plugin.Account{UID: uint32(s.User), GID: uint32(s.User), Known: true},
	}
	for trait := range strings.FieldsSeq(how) {
		p.have(trait)
	}
	if p.listens > 0 {
		p.listens += m.sim.elapsed
	}
	m.programs = append(m.programs, p)
	p.socket = plugin.SocketID{Device: 1, Inode: uint64(p.number), Birth: m.sim.Now().UnixNano()}
	if !p.strange {
		p.peer = plugin.Peer{PID: p.number, Start: 1, Boot: "b"}
	} else {
		p.account = plugin.Account{}
	}
	p.fate = fate{
		endpoints: map[string]bool{s.Path: true, p.info.Endpoint: true}, announced: map[lane]bool{{s.Type, s.Name}: true},
	}
	m.owners[p.socket] = p
	m.put(s.Path, p)
}

// earlyListens is how long after its socket appeared a program listens.
const earlyListens = 5 * time.Millisecond

// have gives a program a trait.
func (p *program) have(trait string) {
	switch trait {
	case "bare":
		p.info.Endpoint = ""
	case "shared":
		p.info.Endpoint = "/shared"
	case "slow":
		p.infoTakes = 50 * time.Millisecond
	case "late":
		p.infoTakes = 3 * time.Second
	case "hung":
		p.hangs = true
	case "full":
		p.full = true
	case "garbage":
		p.infoErr = errors.New("garbage")
	case "unavailable":
		p.infoErr = fmt.Errorf("unavailable: %w", cache.ErrRetry)
	case "foreign":
		p.infoErr = &trust.Refusal{Reason: trust.Endpoint, Problem: "its endpoint is another user's", Remedy: "serve it"}
	case "untellable":
		p.notifyErr = errors.New("does not listen")
	case "reluctant":
		p.notifyTakes = 100 * time.Millisecond
	case "hidden":
		p.hidden = true
	case "strange":
		p.strange = true
	case "touchy":
		p.exitsWhenRefused = true
	case "sulky":
		p.refusalTakes = time.Second
	case "early":
		p.listens = earlyListens
	case "watched":
		p.watched = true
	case "unfit":
		p.unfit = true
	case "unwelcome":
		p.unwelcome = true
	case "distrusted":
		p.distrusted = true
	case "entry":
		p.account.Launched, p.account.Name = true, p.info.Name
	case "forbidden":
		p.account.UID, p.account.GID = 60003, 60003
	default:
		panic("no such trait: " + trait)
	}
}

// put has a program at a path, in place of whatever was there.
func (m *model) put(path string, p *program) {
	if old := m.files[path]; old != nil {
		old.pristine = false
	}
	m.files[path] = p
	m.changed()
}

// unlink removes what is at a path. Whoever serves it goes on.
func (m *model) unlink(path string) {
	if p := m.files[path]; p != nil {
		p.pristine = false
		delete(m.files, path)
		m.changed()
	}
}

// rename moves a socket.
func (m *model) rename(from, to string) {
	p := m.files[from]
	if p == nil || from == to {
		return
	}
	m.leaves(p, from)
	p.endpoints[to] = true
	delete(m.files, from)
	m.put(to, p)
}

// leaves notes that a socket moves, from where it is known to be or not.
func (m *model) leaves(p *program, from string) {
	p.pristine = false
	// That it was back for a moment in between need not have been seen.
	if m.life.told[from] == p.socket && p.missedAt <= p.reachedAt {
		p.movedAt = m.sim.elapsed
	}
}

// rotate has the sockets at some paths change places.
func (m *model) rotate(paths ...string) {
	first := m.files[paths[0]]
	for _, path := range paths {
		if p := m.files[path]; p != nil {
			m.leaves(p, path)
		}
	}
	for i, path := range paths {
		p := first
		if i+1 < len(paths) {
			p = m.files[paths[i+1]]
		}
		if p == nil {
			delete(m.files, path)
			continue
		}
		p.endpoints[path] = true
		m.files[path] = p
	}
	m.changed()
}

// changed has it told, soon, that something in the directories changed.
func (m *model) changed() {
	m.disturbed()
	switch l := m.life; {
	case m.held || l.dead || !l.scanning:
	case m.set.has("jumpy") && !m.calm && m.sim.chance(2):
		m.sim.at(nil, time.Duration(m.sim.random.IntN(20))*time.Millisecond, func() {
			if !m.held && l == m.life && l.scanning {
				l.tell()
			}
		})
	default:
		l.tell()
	}
}

// seen is what is at a path as far as it is trusted.
func (m *model) seen(path string) *program {
	if p := m.files[path]; p != nil && !p.withdrawn {
		return p
	}
	return nil
}

// tell has the desired state of the world be what is in the directories, as dirwatch does: a socket that is known and found elsewhere has
// moved, unless another one has come in its place before that was seen.
func (l *life) tell() { l.tellPart(1) }

// tellPart does that for one path in so many, at least.
func (l *life) tellPart(of int) {
	m := l.m
	m.disturbed()
	paths := maps.Clone(l.told)
	for path, p := range m.files {
		paths[path] = p.socket
	}
	all := slices.Sorted(maps.Keys(paths))
	m.sim.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, path := range all[:(len(all)+of-1)/of] {
		p, told := m.seen(path), l.told[path]
		switch {
		case p != nil && p.socket != told:
			l.tellOf(path, p)
		case p == nil && told != (plugin.SocketID{}) && m.pathOf(told) == "":
			delete(l.told, path)
			m.owners[told].goneAt = m.sim.elapsed
			l.leaves(told)
			m.note("fact: %s is gone", path)
			l.desired.RemovePlugin(path)
		}
	}
}

// pathOf is where a socket is; empty if that is nowhere.
func (m *model) pathOf(socket plugin.SocketID) string {
	p := m.owners[socket]
	for path, at := range m.files {
		if at == p && !p.withdrawn {
			return path
		}
	}
	return ""
}

func (l *life) tellOf(path string, p *program) {
	from := ""
	for known, socket := range l.told {
		if socket == p.socket {
			from = known
		}
	}
	if l.m.wasHeld {
		p.toldLate = l.m.sim.elapsed
	}
	if over := l.m.owners[l.told[path]]; over != nil {
		// If it appears anew, it is another one.
		over.unwanted, over.toldLate = true, l.m.sim.elapsed
		l.leaves(over.socket)
	}
	l.told[path] = p.socket
	if from != "" {
		delete(l.told, from)
		l.m.note("fact: %s moved to %s", from, path)
		l.desired.MoveSocket(from, cache.PluginInfo{SocketPath: path, FoundInDeprecatedDir: deprecated(path)})
		return
	}
	if !l.unseen[p.socket] {
		l.m.appeared++
		p.appearedAt = l.m.sim.elapsed
		p.rank, p.record, p.found = float64(l.m.appeared), nil, 0
		if !l.synced {
			l.found++
			p.found = l.found
		}
	}
	l.m.note("fact: %s is there, program %d", path, p.number)
	p.goneAt = 0
	l.expectDial(path, p)
	if err := l.desired.SetSocket(cache.PluginInfo{SocketPath: path, Socket: p.socket, FoundInDeprecatedDir: deprecated(path)}); err != nil {
		l.m.complain("SetSocket: %v", err)
	}
}

// leaves notes that what was registered on a socket so far goes, whether that is there again or not.
func (l *life) leaves(socket plugin.SocketID) {
	for id, in := range l.instances {
		if in.Socket == socket {
			l.leaving[id] = true
		}
	}
}

// expectDial sees that a socket that appeared is dialled soon, however many others hang: each holds its slot for 25 ms at most.
func (l *life) expectDial(path string, p *program) {
	m, dials, asks, disturbances := l.m, p.dials, p.asks, l.m.disturbances
	m.sim.at(nil, 400*time.Millisecond, func() {
		if m.life == l && !l.dead && l.told[path] == p.socket && p.dials == dials {
			m.complain("%s appeared, and is not dialled", path)
		}
	})
	// The birth of a socket is of the wall clock: whether it is fresh cannot be told when that was set since.
	if p.listens > m.sim.elapsed && len(m.files) == 1 && (m.clockSet == 0 || m.clockSet < p.listens-earlyListens) {
		m.sim.at(nil, 60*time.Millisecond, func() {
			if m.life == l && !l.dead && m.disturbances == disturbances && p.asks == asks && !p.full && !p.dead && !m.set.has("jumpy") {
				m.complain("program %d listens a moment after its socket appeared, and is not asked", p.number)
			}
		})
	}
}

// kill ends a program and leaves its socket.
func (m *model) kill(p *program) {
	m.disturbed()
	p.dead, p.outlived, p.pristine, p.diedAt = true, false, false, m.sim.elapsed
	m.hint(p, true)
}

// quit has a program accept no more, whose process lives on. Not all close their connections then; of one whose process nobody sees, or
// whose socket is still taken to be there, that would never be known.
func (m *model) quit(p *program) {
	m.disturbed()
	p.dead, p.outlived, p.pristine, p.diedAt = true, true, false, m.sim.elapsed
	there := slices.Contains(slices.Collect(maps.Values(m.life.told)), p.socket)
	if p.number%2 == 0 || p.strange || there {
		m.hint(p, false)
	}
}

// hint tells whoever watches a program that something happened to it.
func (m *model) hint(p *program, ended bool) {
	watchers := p.watchers
	p.watchers = nil
	for _, w := range watchers {
		switch {
		case w.of != m.life || w.of.dead:
		case w.exit && !ended:
			p.watchers = append(p.watchers, w)
		default:
			w.hint()
		}
	}
}

// watch has hint called when something happens to a program.
func (m *model) watch(of *life, p *program, hint func(), exit bool) (stop func(), err error) {
	if p.hidden && !exit || p.dead && (!exit || !p.outlived) {
		return nil, io.EOF
	}
	w := &watcher{of, hint, exit}
	p.watchers = append(p.watchers, w)
	return func() { p.watchers = slices.DeleteFunc(p.watchers, func(o *watcher) bool { return o == w }) }, nil
}

// server is who serves what lies at a path, a socket or an endpoint, and whether anybody accepts there.
func (m *model) server(path string) (p *program, accepts bool) {
	if p := m.files[path]; p != nil {
		return p, !p.dead
	}
	for _, p := range m.programs {
		if p.endpoints[path] && unique(path) && !p.apiGone {
			return p, !p.dead && !p.deaf
		}
	}
	return nil, false
}
