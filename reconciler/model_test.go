package reconciler_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// step is one disturbance of a world.
type step struct {
	Op       string
	Path, To string
	Name     string
	Type     string
	// Pause is the time to the next step; if it is negative, the next one does not even wait for this one's consequences.
	Pause time.Duration
}

// The disturbances. What is written more than once is drawn more often. What is drawn first says least when a failure is made simple.
var (
	sockets = []string{
		"make", "make", "make bare", "make bare", "make slow", "make late", "make hung", "make garbage", "make unavailable",
		"make untellable", "make reluctant", "make hidden", "make strange", "make touchy", "make sulky", "make shared",
		"remove", "remove", "rename", "rename", "rename", "kill", "kill", "heal", "change peer",
	}
	announcements = []string{
		"make", "make bare", "make bare", "make bare sulky", "make bare sulky", "make shared", "make bare hidden", "make bare touchy",
		"rename", "rename", "rename", "remove", "kill",
		"announce name", "announce type", "announce endpoint", "announce socket", "announce shared", "announce versions", "announce nonsense",
		"announce nonsense", "announce too much", "heal", "heal", "unavailable",
	}
	handling = []string{
		"fail validate", "retry validate", "panic validate", "slow validate", "block validate",
		"fail register", "retry register", "panic register", "slow register", "block register",
		"panic deregister", "slow deregister", "block deregister", "panic gone", "slow gone", "slow keep", "panic keep",
		"fail admit", "retry admit", "slow admit", "block admit",
		"clear handler", "clear handler", "release", "remove handler", "set handler", "set handler",
	}
	storage = []string{"fail save", "mend save", "mend save", "restart", "restart"}
)

// mixes are the ways in which worlds are disturbed: with everything, and with more of what meets seldom.
var mixes = map[string][]string{
	"everything":    slices.Concat(sockets, announcements, handling, storage),
	"announcements": announcements,
	"failures":      slices.Concat([]string{"make", "make", "make bare", "remove", "kill", "rename"}, handling, storage),
	"sockets":       sockets,
	"restarts":      slices.Concat(sockets, announcements, storage, storage, storage, []string{"change peer", "change peer", "change peer"}),
	"moves": {"make", "make bare", "make bare sulky", "make bare sulky", "rename", "rename", "rename", "remove", "heal", "announce nonsense",
		"announce nonsense"},
	"replacements": {"make", "make", "make bare", "make slow", "make late", "rename", "rename", "rename", "slow register", "block register",
		"release"},
	"handlers": {"make", "make bare", "remove", "kill", "remove handler", "set handler", "set handler", "slow deregister", "announce nonsense",
		"announce nonsense", "heal", "announce name"},
	"deaths at work": {"make", "make bare", "make touchy", "kill", "remove", "slow register", "slow validate", "fail register"},
}

func stepsOf(ops []string) *rapid.Generator[[]step] {
	path := rapid.SampledFrom([]string{"/a", "/a", "/b", "/b", "/c", "/d"})
	ops = append([]string{"pause"}, ops...)
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			Op:   rapid.SampledFrom(ops).Draw(t, "op"),
			Path: path.Draw(t, "path"),
			To:   path.Draw(t, "to"),
			Name: rapid.SampledFrom([]string{"foo", "foo", "foo", "bar"}).Draw(t, "name"),
			Type: rapid.SampledFrom([]string{"T", "T", "T", "U", "unclaimed"}).Draw(t, "type"),
			Pause: rapid.SampledFrom([]time.Duration{-1, 0, 0, time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond,
				3 * time.Second}).Draw(t, "pause"),
		}
	}), 20, 60)
}

// TestModel disturbs a world in every way and sees that the handlers are called only as the documented state machine allows, that plugins
// are told what they must be told and nothing else, that no step leads to work without end, that everything ends as it should when the
// disturbances end, and that nothing is left running (which the bubble notices).
func TestModel(t *testing.T) {
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("500"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = checks.Value.Set(checks.DefValue) }()
	}
	for _, mix := range slices.Sorted(maps.Keys(mixes)) {
		t.Run(strings.ReplaceAll(mix, " ", "-"), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				todo := stepsOf(mixes[mix]).Draw(rt, "steps")
				cfg := reconciler.Config{
					Walks:            rapid.IntRange(1, 3).Draw(rt, "walks"),
					UnreachableGrace: rapid.SampledFrom([]time.Duration{0, 0, time.Second}).Draw(rt, "grace"),
					Timeouts:         reconciler.Timeouts{Handler: rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(rt, "handler timeout")},
					ClientTimeout:    clientTimeout,
				}
				manners := manners{
					keeps: rapid.Bool().Draw(rt, "keeps"), contexts: rapid.Bool().Draw(rt, "contexts"), stay: rapid.Bool().Draw(rt, "stay"),
				}
				seed := rapid.Uint64().Draw(rt, "seed")
				if wrong := newModel(t, newSim(seed), cfg, manners).run(todo); len(wrong) > 0 {
					rt.Fatalf("%s", strings.Join(wrong, "\n"))
				}
			})
		})
	}
}

// model is a world, and what should be true in it.
type model struct {
	*world
	manners
	// handlers are the present ones by type, callers all that were ever set since the reconciler started.
	handlers map[string]*strict
	callers  []*strict
	busy     map[lane]string // the call that runs
	fates    map[*plugin]*fate
	ranks    map[string]float64 // by instance that was saved
	before   map[lane][]before  // the last restart
	open     map[string]bool    // instances that are registered, as the events tell
	leaving  map[string]bool    // those that were to be removed
	appeared uint64
	wrong    []string
}

type lane struct{ ptype, name string }

// before is an instance that was remembered at a restart.
type before struct {
	rank  float64
	birth int64
}

// fate is what the model knows of a plugin.
type fate struct {
	// rank is greater for the instance that is to be preferred.
	rank float64
	// found is its number among those that were there at a restart, if it is not remembered: it does not come before those that were and
	// were born later. It is zero otherwise.
	found int
	// record is what was remembered, until it has answered; remembered is its type and name, as long as it counts.
	record     *reconciler.Instance
	remembered lane
	// said is the last valid announcement.
	said reconciler.Info
	// lost is the instance as which it was remembered, if another process serves its socket since the restart.
	lost string
	// endpoints are all under which it may have been registered.
	endpoints map[string]bool
	// owed says that it has to be told of a refusal, refused that there was one, unwanted that there was one, or no handler, since it
	// was registered last.
	owed, refused, unwanted bool
}

func newModel(t *testing.T, s *sim, cfg reconciler.Config, manners manners) *model {
	m := &model{manners: manners, handlers: map[string]*strict{}, busy: map[lane]string{}, fates: map[*plugin]*fate{}, open: map[string]bool{},
		leaving: map[string]bool{}, ranks: map[string]float64{}}
	m.modes, m.released = map[string]string{}, make(chan struct{})
	cfg.Admit = m.admit
	m.world = newWorldIn(t, s, cfg)
	m.observe = m.observed
	m.staging, m.publishing, m.removing = m.staged, m.published, m.removed
	m.setHandler("T")
	m.setHandler("U")
	return m
}

// complain notes what is wrong. The world is locked.
func (m *model) complain(format string, args ...any) {
	m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
}

func (m *model) setHandler(ptype string) {
	h := &strict{m: m, ptype: ptype, names: map[string]*walk{}}
	m.mu.Lock()
	m.handlers[ptype] = h
	m.callers = append(m.callers, h)
	m.mu.Unlock()
	m.r.SetHandler(ptype, h.handler())
}

// run disturbs the world, lets it come to rest and says what is wrong then.
func (m *model) run(todo []step) []string {
	for i, s := range todo {
		m.disturb(s, i)
		if s.Pause >= 0 {
			m.sim.pass(s.Pause)
			if s.Pause > time.Second {
				m.checkGivenOut()
			}
			m.checkWork(fmt.Sprintf("step %d, %s", i, s.Op), s.Pause, 100+60*retries(s.Pause))
		}
	}
	// All disturbances end; the longest back-off is that behind an older instance, an hour and a bit.
	m.mu.Lock()
	m.failSave = nil
	for _, p := range m.plugins {
		p.heal()
	}
	m.mu.Unlock()
	m.release()
	for _, ptype := range []string{"T", "U"} {
		if m.stay && m.handlers[ptype] == nil {
			m.setHandler(ptype)
		}
	}
	const rest = 75 * time.Minute
	m.sim.pass(rest)
	m.checkWork("the end", rest, 1000)
	m.settled()
	m.stop()
	return append(m.wrong, m.amiss...)
}

// retries is how often something that fails is tried again in a time.
func retries(d time.Duration) (n int) {
	for wait := 80 * time.Millisecond; d >= wait; wait *= 2 {
		d -= wait
		n++
	}
	return n
}

// checkWork sees that since the last time no more was done than there is reason for. Four sockets exist at most.
func (m *model) checkWork(when string, passed time.Duration, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	done := 0
	for what, n := range m.work {
		if what != "probe" && what != "dial" && what != "remove" && what != "discard" {
			done += n
		}
	}
	if done > most {
		m.complain("%s led to %d calls, at most %d are called for: %v", when, done, most, m.work)
	}
	if probes := 20 + 4*int(passed/(2500*time.Millisecond)); m.work["probe"] > probes {
		m.complain("%s led to %d probes, at most %d are called for", when, m.work["probe"], probes)
	}
	clear(m.work)
}

// disturb does one step, the i-th.
func (m *model) disturb(s step, i int) {
	m.mu.Lock()
	at := m.plugins[s.Path]
	m.mu.Unlock()
	op, how, _ := strings.Cut(s.Op, " ")
	switch op {
	case "make":
		m.make(s, how, fmt.Sprint("/endpoint", i))
	case "announce":
		m.announce(at, s, how, fmt.Sprint("/endpoint", i))
	case "restart":
		m.restart()
	case "rename":
		if at != nil && s.Path != s.To {
			m.mu.Lock()
			m.fates[at].endpoints[s.To] = true
			m.mu.Unlock()
			m.move(s.Path, s.To, at)
		}
	case "remove", "set":
		if how == "handler" {
			m.changeHandler(op, s.Type)
		} else {
			m.remove(s.Path)
		}
	case "clear":
		m.behave("", "")
	case "release":
		m.release()
	case "pause":
	case "save", "fail", "mend", "retry", "panic", "slow", "block":
		if how != "save" {
			m.behave(how, op)
			break
		}
		m.mu.Lock()
		m.failSave = map[string]error{"fail": errors.New("disk full")}[op]
		m.mu.Unlock()
	default:
		m.afflict(at, op)
	}
}

func (m *model) changeHandler(op, ptype string) {
	if ptype == "unclaimed" {
		return
	}
	if op == "set" {
		m.setHandler(ptype)
		return
	}
	m.mu.Lock()
	delete(m.handlers, ptype)
	for p, f := range m.fates {
		f.unwanted = f.unwanted || p.said.Type == ptype
	}
	m.mu.Unlock()
	m.r.RemoveHandler(ptype)
}

// afflict does something to the plugin on a socket, if there is one.
func (m *model) afflict(p *plugin, op string) {
	if p == nil {
		return
	}
	switch op {
	case "kill":
		m.kill(p)
		return
	case "change":
		m.sim.settle() // Whoever has just answered is who is asked for its peer.
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch op {
	case "change":
		m.appeared++
		p.peer = reconciler.Peer{PID: int(m.appeared), StartTime: 2, Boot: "b"}
	case "heal":
		p.heal()
	case "unavailable":
		p.infoErr = errors.New("unavailable")
	default:
		panic("no such disturbance: " + op)
	}
}

func (p *plugin) heal() {
	p.infoTakes, p.notifyTakes, p.hangs, p.infoErr, p.notifyErr = 0, 0, false, nil, nil
	if p.info.Name == "" {
		p.info.Name = "foo"
	}
	p.info.Versions = p.info.Versions[:min(len(p.info.Versions), 1)]
}

// make puts a plugin on a socket.
func (m *model) make(s step, how, endpoint string) {
	p := &plugin{info: reconciler.Info{Type: s.Type, Name: s.Name, Endpoint: endpoint, Versions: []string{"v1"}}}
	for trait := range strings.FieldsSeq(how) {
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
		case "garbage":
			p.infoErr = errors.New("garbage")
		case "unavailable":
			p.infoErr = errors.New("unavailable")
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
		default:
			panic("no such plugin: " + how)
		}
	}
	m.appear(s.Path, p)
}

// appear puts a plugin on a socket, which is newer than all others.
func (m *model) appear(path string, p *plugin) {
	m.mu.Lock()
	m.appeared++
	f := &fate{rank: float64(m.appeared), endpoints: map[string]bool{path: true, p.info.Endpoint: true}}
	m.fates[p] = f
	p.onSaid = func(info reconciler.Info) { m.said(p, f, info) }
	p.onTold = func(registered bool, reason string) { m.told(p, f, registered, reason) }
	m.mu.Unlock()
	m.serve(path, "", p)
}

// announce has a plugin say something else from now on.
func (m *model) announce(p *plugin, s step, what, endpoint string) {
	if p == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch what {
	case "name":
		p.info.Name = s.Name
	case "type":
		p.info.Type = s.Type
	case "endpoint":
		p.info.Endpoint = endpoint
	case "socket":
		p.info.Endpoint = ""
	case "shared":
		p.info.Endpoint = "/shared"
	case "versions":
		p.info.Versions = []string{endpoint}
	case "nonsense":
		p.info.Name = ""
	case "too much":
		p.info.Versions = slices.Repeat([]string{"v1"}, 65)
	}
	m.fates[p].endpoints[p.info.Endpoint] = true
}

// restart ends the reconciler and starts another one, which finds the same sockets and remembers what is on disk.
func (m *model) restart() {
	m.release()
	m.stop()
	m.mu.Lock()
	var order []*plugin
	paths := map[*plugin]string{}
	for path, p := range m.plugins {
		order = append(order, p)
		paths[p] = path
	}
	slices.SortFunc(order, func(a, b *plugin) int { return int(a.socket.Inode) - int(b.socket.Inode) })
	clear(m.open)
	clear(m.registry)
	clear(m.unreachable)
	m.before = map[lane][]before{}
	for i, in := range m.saved {
		m.registry[in.Name] = append(m.registry[in.Name], in.ID)
		if slices.ContainsFunc(m.saved[:i], func(n reconciler.Instance) bool { return n.Socket == in.Socket }) {
			continue
		}
		key := lane{in.Type, in.Name}
		m.before[key] = append(m.before[key], before{m.ranks[in.ID], in.Socket.Birth})
		for _, p := range order {
			if f := m.fates[p]; p.socket == in.Socket {
				f.rank, f.record, f.remembered = m.ranks[in.ID], &in, key
			}
		}
	}
	for i, p := range order {
		f := m.fates[p]
		f.owed, f.found = false, 0
		if f.record == nil {
			m.appeared++
			f.rank, f.found = float64(m.appeared), i+1
		}
	}
	kept := m.handlers
	m.handlers, m.callers = map[string]*strict{}, nil
	m.mu.Unlock()
	m.start()
	for ptype := range kept {
		m.setHandler(ptype)
	}
	for _, p := range order {
		if err := m.desired.SetSocket(cache.Socket{Path: paths[p], ID: p.socket}); err != nil {
			m.t.Error(err)
		}
	}
	m.r.Synced()
}
