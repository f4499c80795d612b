package reconciler_test

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// life is one run of a host, from its start until it ends or is killed. Nothing of one that is dead touches the world.
type life struct {
	m    *model
	pace *simPace
	dead bool
	// unlucky: a write failed.
	unlucky bool
	// ending: it is told to end.
	ending bool

	desired *cache.Desired
	store   *dynamicplugins.Store
	r       *reconciler.Reconciler
	cancel  context.CancelFunc
	end     func() // what Run does at its end

	// told are the sockets of which the desired state was told. scanning: the directories are being read; synced: they have been read once.
	told             map[string]plugin.SocketID
	scanning, synced bool
	syncedAt         time.Duration
	found            int                      // counts what was found until then and is not remembered
	unseen           map[plugin.SocketID]bool // remembered, and the machine does not know yet that they are there

	handlers map[string]*strict // the present ones
	callers  []*strict          // all that there were
	busy     map[lane]string    // the call that runs

	events    <-chan *dynamicplugins.PluginUpdateEvent
	mirror    map[instanceKey]*dynamicplugins.PluginInfo
	instances map[string]plugin.Instance // all that were staged or restored, as they were last
	open      map[string]bool            // instances that are registered, as the reconciler's events tell
	leaving   map[string]bool            // those that were to be removed
	removals  map[lane][]string          // those that are to be removed, in order, and are on the disk still
	conns     int                        // that are open
	last      map[machine.Ref]machine.Row
	asking    map[machine.Ref]*program // that are asked under it
	walks     map[string]time.Duration // when the last one to an endpoint began
}

var simJudge = func() *trustjudge.Judge {
	both := []string{"60001", "60002"}
	j, err := trustjudge.New(trust.Policy{
		Owners: trust.Accounts{Users: both},
		Types:  map[string]trust.Type{"T": {Users: both}, "U": {Users: both, Supersede: true}},
	})
	if err != nil {
		panic(err)
	}
	return j
}()

// boot starts a host on what is on the disk, with handlers for some types.
func (m *model) boot(types []string) {
	l := &life{
		m: m, pace: &simPace{sim: m.sim}, told: map[string]plugin.SocketID{}, unseen: map[plugin.SocketID]bool{},
		handlers: map[string]*strict{}, busy: map[lane]string{}, mirror: map[instanceKey]*dynamicplugins.PluginInfo{},
		instances: map[string]plugin.Instance{}, open: map[string]bool{}, leaving: map[string]bool{}, last: map[machine.Ref]machine.Row{},
		removals: map[lane][]string{},
		asking:   map[machine.Ref]*program{}, walks: map[string]time.Duration{},
	}
	m.life = l
	m.disk.die = ""
	m.note("the host starts")
	var storage dynamicplugins.StateStorage = wholeStore{m.disk, l}
	if m.set.has("changes") {
		storage = changeStore{wholeStore{m.disk, l}}
	}
	dispensers := map[string]dynamicplugins.PluginDispenser{}
	for _, ptype := range []string{"T", "U", "role", "other"} {
		dispensers[ptype] = func(info *dynamicplugins.PluginInfo) (any, error) { return info, nil }
	}
	var err error
	if l.store, err = dynamicplugins.Open(storage, dispensers); err != nil {
		m.complain("the registry cannot be opened: %v", err)
		return
	}
	restored := pipeline.Restored(l.store, slog.New(slog.DiscardHandler))
	m.remember(l, restored)
	m.rememberNames(restored)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	snapshot, events := l.store.Watch(context.Background(), "")
	for _, info := range snapshot {
		l.mirror[instanceKey{lane{info.Type, info.Name}, info.AllocID}] = info
	}
	l.events = events
	l.desired = cache.NewDesired()
	l.desired.Clock = l.pace.Now
	l.r = reconciler.NewAt(l.config(restored), l.pace)
	l.r.Audit(l.entered, m.traceStep)
	if m.set.has("gathers") {
		l.r.GatherFrom(1)
	}
	for _, ptype := range types {
		l.setHandler(ptype)
	}
	turn, end := l.r.Drive(ctx)
	m.sim.turn, l.end = turn, end
	scan := func(then func()) func() {
		return func() {
			if m.life == l && !l.dead {
				l.scanning = true
				then()
			}
		}
	}
	first, last := scan(func() { l.tellPart(2) }), scan(func() {
		l.tell()
		l.r.MarkComplete()
	})
	if m.set.has("slowscan") && !m.calm {
		m.sim.at(nil, 20*time.Millisecond, first)
		m.sim.at(nil, 30*time.Millisecond, last)
	} else {
		last()
	}
}

func (l *life) config(restored []plugin.Instance) reconciler.Config {
	m := l.m
	cfg := reconciler.Config{
		Desired: l.desired, Transport: simTransport{l}, Registry: simRegistry{l, pipeline.RegistryOf(l.store)}, Restored: restored,
		Observe: l.observed, Admit: l.admit, IgnoreUnhandled: m.set.has("ignores"), ClientTimeout: clientTimeout,
		Timeouts: plugin.Timeouts{Handler: m.set.duration("handlertimeout")}, Slots: m.walks,
		TypeTimeouts:     map[string]plugin.Timeouts{"U": {GetInfo: 2 * time.Second}},
		UnreachableGrace: m.set.duration("grace"), NameGrace: m.set.duration("namegrace"),
		Names: keeper.Of[*dynamicplugins.PluginInfo](l.store).Reservations(),
		Attempted: func(a plugin.Attempt) {
			if m.note("attempt: %+v", a); a.Duration < 0 || a.Duration > 3*time.Hour {
				m.complain("an attempt took %v", a.Duration)
			}
		},
		Refused: func(reason trust.Reason) { m.note("distrusted: %s", reason) },
	}
	if m.set.has("trust") {
		cfg.Trust = simJudge
	}
	if m.set.has("traced") {
		cfg.Tracer = noop.NewTracerProvider().Tracer("")
	}
	return cfg
}

// remember has the model know what the host remembers.
func (m *model) remember(l *life, restored []plugin.Instance) {
	m.before = map[lane][]before{}
	for _, p := range m.programs {
		p.record, p.remembered, p.found, p.pristine, p.owed, p.turnedDown = nil, lane{}, 0, false, false, 0
		p.barred, p.barredBefore, p.asking = 0, 0, 0
	}
	for i, in := range restored {
		l.instances[in.ID] = in
		if slices.ContainsFunc(restored[:i], func(n plugin.Instance) bool { return n.Socket == in.Socket }) {
			l.leaving[in.ID] = true // its removal had not been saved
			continue
		}
		key := lane{in.Type, in.Name}
		m.before[key] = append(m.before[key], before{m.ranks[in.ID], in.Socket.Birth})
		l.unseen[in.Socket] = true
		if p := m.owners[in.Socket]; p != nil {
			p.rank, p.record, p.remembered = m.ranks[in.ID], &in, key
		}
	}
}

// setHandler sets a new handler for a type.
func (l *life) setHandler(ptype string) {
	h := &strict{l: l, ptype: ptype, names: map[string]*walk{}}
	l.handlers[ptype] = h
	l.callers = append(l.callers, h)
	l.r.SetHandler(ptype, h.handler())
}

func (l *life) types() (types []string) {
	for _, ptype := range []string{"T", "U"} {
		if l.handlers[ptype] != nil {
			types = append(types, ptype)
		}
	}
	return types
}

// stop ends the host in good order.
func (m *model) stop() {
	l := m.life
	m.release()
	m.note("the host ends")
	l.ending = true
	l.cancel()
	l.end()
	if l.dead { // it was killed before that
		return
	}
	m.sim.turn = nil
	l.follow()
	l.checkMirror()
	for _, id := range m.disk.instances() {
		if !l.unlucky && !slices.ContainsFunc(slices.Collect(maps.Keys(l.mirror)), func(k instanceKey) bool { return k.id == id }) {
			m.complain("%s was never announced, and is left on the disk by a host that ended", id)
		}
	}
	l.store.Shutdown()
	watches := 0
	for _, p := range m.programs {
		for _, w := range p.watchers {
			if w.of == l {
				watches++
			}
		}
	}
	if l.conns != 0 || watches != 0 {
		m.complain("%d connections and %d watches are left of a host that ended", l.conns, watches)
	}
	l.dead, l.pace.dead = true, true
}

// crash kills the host where it is.
func (m *model) crash() {
	m.note("the host is killed")
	l := m.life
	l.dead = true
	l.cancel()
	m.sim.turn = nil
	l.pace.kill()
}

// entered counts the rows of the table, and sees that there is no other transition.
func (l *life) entered(ref machine.Ref, row machine.Row) {
	if !inTable(row) {
		l.m.complain("%s → %s, %s: the table has no such row", row.From, row.To, row.On)
	}
	l.m.figures.Rows[row]++
	if last, known := l.last[ref]; known {
		l.m.figures.Pairs[[2]machine.Row{last, row}]++
	}
	l.last[ref] = row
}
