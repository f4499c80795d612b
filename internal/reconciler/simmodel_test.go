package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/plugin"
)

// model is a simulated world, and what should be true in it.
type model struct {
	sim   *sim
	set   settings
	walks int
	// files are the sockets in the directories, programs all that ever were, owners those by their sockets.
	files    map[string]*program
	programs []*program
	owners   map[cacheID]*program
	disk     *simDisk
	life     *life
	// held: facts about the directories are held back. blind: dials do not look whom they reach. calm: nothing takes time any more.
	held, wasHeld, blind, calm bool

	modes   map[string]string // how the calls of handlers misbehave
	blocked []func()          // have blocked calls return

	appeared     uint64
	peers        int
	disturbances int // counts them, the last of which was then
	taken        int // counts the changes that the machine took over
	lastOne      time.Duration
	ranks        map[string]float64 // by instance that was saved
	shown        map[string]bool    // instances that were published
	before       map[lane][]before  // the last restart
	kept         map[lane]*keptName // names whose plugins went
	clockSet     time.Duration
	spared       map[lane]time.Duration // when names were not kept last, since others had them
	letGo        map[lane]time.Duration // when names were released last
	count        int                    // of what is said and done about names
	work         map[string]int         // counts calls to plugins, the disk and handlers by kind
	wrong        []string
	trace        *strings.Builder // nil: nobody reads it
	figures      *figures
}

type lane struct{ ptype, name string }

// before is an instance that was remembered at a restart.
type before struct {
	rank  float64
	birth int64
}

// figures say what simulations came by.
type figures struct {
	Rows  map[machine.Row]int
	Pairs map[[2]machine.Row]int
	Steps int
}

func newFigures() *figures {
	return &figures{Rows: map[machine.Row]int{}, Pairs: map[[2]machine.Row]int{}}
}

// simulate runs a script, and returns what is wrong.
func simulate(s script, f *figures, options ...func(*model)) (wrong []string) {
	m := &model{
		sim: newSim(s.seed), set: s.set, walks: 2, files: map[string]*program{}, owners: map[cacheID]*program{},
		modes: map[string]string{}, ranks: map[string]float64{}, shown: map[string]bool{}, work: map[string]int{}, figures: f,
		kept: map[lane]*keptName{}, letGo: map[lane]time.Duration{}, spared: map[lane]time.Duration{},
	}
	if n, err := strconv.Atoi(s.set["walks"]); err == nil {
		m.walks = n
	}
	for _, option := range options {
		option(m)
	}
	m.disk = &simDisk{m: m, saved: map[lane][]*pluginInfo{}, names: map[lane]plugin.Reservation{}}
	m.sim.stepped = m.stepped
	defer func() {
		if v := recover(); v != nil {
			wrong = slices.Concat(m.wrong, []string{fmt.Sprintf("panic: %v\n%s", v, stack())})
		}
		f.Steps += m.sim.steps
		if l := m.life; l != nil && !l.pace.dead { // what failed has not ended
			l.dead = true
			l.pace.kill()
		}
	}()
	m.boot([]string{"T", "U"})
	return m.run(s.steps)
}

// written has what happens written down.
func written(b *strings.Builder) func(*model) { return func(m *model) { m.trace = b } }

func (m *model) note(format string, args ...any) {
	if m.trace != nil {
		fmt.Fprintf(m.trace, "%v "+format+"\n", append([]any{m.sim.elapsed}, args...)...)
	}
}

// complain notes what is wrong.
func (m *model) complain(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.note("WRONG: %s", text)
	if len(m.wrong) < 20 {
		m.wrong = append(slices.Clip(m.wrong), fmt.Sprintf("after %v: %s", m.sim.elapsed, text))
	}
}

// disturbed counts a disturbance.
func (m *model) disturbed() { m.disturbances, m.lastOne = m.disturbances+1, m.sim.elapsed }

// moment counts all that a walk may not have known of.
func (m *model) moment() int { return m.disturbances + m.taken }

// did counts one piece of work.
func (m *model) did(what string) { m.work[what]++ }

// stepped is called after each step of the simulation.
func (m *model) stepped() {
	l := m.life
	if l.dead {
		if !l.pace.dead {
			types := l.types()
			m.crash()
			m.boot(types)
		}
		return
	}
	l.follow()
	m.checkGap()
}

// run disturbs the world, lets it come to rest and says what is wrong then.
func (m *model) run(todo []step) []string {
	for i, s := range todo {
		m.note("step: %v", s)
		m.disturb(s, i)
		if s.Pause >= 0 {
			m.sim.pass(s.Pause)
			if s.Pause > 2*time.Second && !m.held && m.life.synced && m.sim.elapsed-m.life.syncedAt > 2*time.Second {
				m.checkGivenOut()
			}
			m.life.checkMirror()
			m.checkWork(fmt.Sprintf("step %d, %s", i, s.Op), s.Pause, 150+90*retries(s.Pause))
		}
		if len(m.wrong) > 0 {
			return m.wrong
		}
	}
	// All disturbances end. The longest back-off is that behind an older instance, an hour and a bit, for which only some wait.
	m.note("rest")
	m.disk.mode = ""
	for _, p := range m.programs {
		p.heal()
		p.refusalTakes = 0
		if !m.set.has("choosy") {
			p.unfit, p.unwelcome = false, false
		}
	}
	m.release()
	m.hold(false)
	m.sim.pass(50 * time.Millisecond)
	for _, ptype := range []string{"T", "U"} {
		if m.set.has("stays") && m.life.handlers[ptype] == nil {
			m.life.setHandler(ptype)
		}
	}
	rest := 5 * time.Minute
	m.calm = true
	if m.set.has("patient") {
		rest = 75 * time.Minute
	} else {
		m.disturbed()
		m.life.r.Reconsider()
	}
	m.sim.pass(rest)
	m.checkWork("the end", rest, 3000)
	m.life.checkMirror()
	m.settled()
	m.vanish()
	m.stop()
	return m.wrong
}

// retries is how often something that fails is tried again in a time.
func retries(d time.Duration) (n int) {
	for wait := 80 * time.Millisecond; d >= wait; wait *= 2 {
		d -= wait
		n++
	}
	return n
}

// checkWork sees that since the last time no more was done than there is reason for. Six sockets exist at most.
func (m *model) checkWork(when string, passed time.Duration, most int) {
	done := 0
	for _, what := range []string{"ask", "notify", "call", "save"} {
		done += m.work[what]
	}
	if done > most {
		m.complain("%s led to %d calls, at most %d are called for: %v", when, done, most, m.work)
	}
	if probes := 30 + 12*int(passed/(2500*time.Millisecond)); m.work["probe"] > probes {
		m.complain("%s led to %d probes, at most %d are called for", when, m.work["probe"], probes)
	}
	clear(m.work)
}

// disturb does one step, the i-th.
func (m *model) disturb(s step, i int) {
	m.disturbed()
	at := m.files[s.Path]
	op, how, _ := strings.Cut(s.Op, " ")
	endpoint := fmt.Sprint("/endpoint", i)
	switch op {
	case "make":
		m.make(s, how, endpoint)
	case "announce":
		m.announce(at, s, how, endpoint)
	case "restart", "crash":
		l, types := m.life, m.life.types()
		if l.dead {
			break
		}
		if op == "restart" {
			m.stop()
		} else {
			m.crash()
		}
		if m.life == l { // or it died while it ended, and there is another one
			m.boot(types)
		}
	case "die":
		m.disk.die = how
	case "rename":
		m.rename(s.Path, s.To)
	case "swap":
		if s.Path != s.To {
			m.rotate(s.Path, s.To)
		}
	case "circle":
		m.rotate("/d/a", "/d/b", "/d/c")
	case "remove", "set":
		if how == "handler" {
			m.changeHandler(op, s.Type)
		} else {
			m.unlink(s.Path)
		}
	case "clear":
		m.behave("", "")
	case "release":
		if how == "name" {
			m.life.r.Release(s.Type, s.Name)
		} else {
			m.release()
		}
	case "hold", "tell":
		m.hold(op == "hold")
	case "clock":
		m.clockSet = m.sim.elapsed
		m.sim.skew = map[string]time.Duration{"back": -5 * time.Hour, "forward": 7 * time.Hour}[how]
	case "reconsider":
		m.life.expectUrged("", "")
		m.life.r.Reconsider()
	case "urge":
		m.life.expectUrged(s.Type, s.Name)
		m.life.r.Urge(s.Type, s.Name)
	case "end", "quit":
		for _, p := range m.programs {
			switch robbed := m.pathOf(p.socket) == "" && !p.dead; {
			case robbed && op == "end":
				m.kill(p)
			case robbed:
				m.quit(p)
			}
		}
	case "pause":
	case "save", "fail", "mend", "flaky", "retry", "panic", "slow", "block":
		if how == "save" {
			m.disk.mode = map[string]string{"fail": op, "flaky": op}[op]
			m.spoil()
		} else {
			m.behave(how, op)
		}
	default:
		m.afflict(at, op, how)
	}
}

// hold has facts held back, or told.
func (m *model) hold(held bool) {
	m.held, m.wasHeld = held, true
	if !held && m.life.scanning {
		m.life.tell()
	}
	m.wasHeld = held
}

// spoil has nothing be beyond doubt any more.
func (m *model) spoil() {
	for _, p := range m.programs {
		p.pristine = false
	}
}

func (m *model) changeHandler(op, ptype string) {
	if ptype == "unclaimed" {
		return
	}
	m.spoil()
	if op == "set" {
		m.life.setHandler(ptype)
		return
	}
	delete(m.life.handlers, ptype)
	for _, p := range m.programs {
		p.unwanted = p.unwanted || p.valid.Type == ptype
	}
	m.life.r.RemoveHandler(ptype)
}

// afflict does something to the program on a socket, if there is one.
func (m *model) afflict(p *program, op, how string) {
	if p == nil {
		return
	}
	p.pristine = false
	switch op {
	case "kill":
		m.kill(p)
	case "hint":
		m.hint(p, false)
	case "change":
		m.sim.settle() // Whoever has just answered is who is asked for its peer.
		m.peers++
		if !p.strange { // whose process nobody sees, before and after
			p.peer = plugin.Peer{PID: 1000 + m.peers, Start: 2, Boot: "b"}
		}
	case "heal":
		p.heal()
	case "unavailable":
		p.have(op)
	case "foreign":
		p.have(op)
		p.unwanted = true
	case "busy":
		p.full = true
	case "deaf":
		p.deaf, p.unwanted = true, true
	case "unlink":
		p.apiGone, p.unwanted = true, true
	case "rob":
		m.unlink(m.pathOf(p.socket))
	case "withdraw":
		p.withdrawn, p.unwanted = true, true
		m.changed()
	default:
		panic("no such disturbance: " + op + " " + how)
	}
}

// announce has a program say something else from now on.
func (m *model) announce(p *program, s step, what, endpoint string) {
	if p == nil {
		return
	}
	p.pristine = false
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
	case "relative":
		p.info.Endpoint = "somewhere"
	case "slash":
		p.info.Type = "T/U"
	case "abstract":
		p.info.Endpoint = "@somewhere"
	case "too":
		p.info.Versions = slices.Repeat([]string{"v1"}, 65)
	}
	p.endpoints[p.info.Endpoint] = true
	p.announced[lane{p.info.Type, p.info.Name}] = true
}

// behave has calls of a kind misbehave from now on; the empty kind has all behave that begin from now on.
func (m *model) behave(call, mode string) {
	if call == "" {
		clear(m.modes)
		return
	}
	m.spoil()
	m.modes[call] = mode
}

// release has all calls behave and return.
func (m *model) release() {
	clear(m.modes)
	for _, release := range m.blocked {
		release()
	}
	m.blocked = nil
}

// act does what the mode of a call says. The program with the endpoint has to be told of a failure.
func (l *life) act(ctx context.Context, call, endpoint string) error {
	m := l.m
	switch m.modes[call] {
	case "fail":
		m.owe(endpoint, true)
		return errors.New("no")
	case "retry":
		return errPatience
	case "panic":
		m.owe(endpoint, true)
		panic("oops")
	case "slow":
		_ = l.pace.Sleep(context.Background(), 200*time.Millisecond)
	case "block":
		blocked, release := context.WithCancel(ctx)
		defer release()
		m.blocked = append(m.blocked, release)
		for blocked.Err() == nil {
			_ = l.pace.Sleep(blocked, time.Hour)
		}
		if err := context.Cause(ctx); err != nil {
			// Whose socket went is told nothing.
			if errors.Is(err, context.DeadlineExceeded) {
				m.owe(endpoint, true)
			}
			return err
		}
	}
	return nil
}

// admit answers whether an instance may be registered.
func (l *life) admit(ctx context.Context, in plugin.Instance) error {
	if l.dead {
		return errKilled
	}
	if err := l.act(ctx, "admit", in.Endpoint); err != nil {
		return fmt.Errorf("not admitted: %w", err)
	}
	return nil
}

// privileged says that a program may register everything, whatever else is registered.
func privileged(a plugin.Account) bool { return !a.Known || a.UID == 0 }
