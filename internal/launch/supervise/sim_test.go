package supervise_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/simulate"
	"github.com/patchbay-dev/patchbay/plugin"
)

var (
	seeds = flag.Uint64("simulate.seeds", defaultSeeds, "how many seeds TestSimulation runs")
	only  = flag.Uint64("simulate.seed", 0, "the only seed that TestSimulation runs, and prints")
)

// TestSimulation runs a launched plugin with a real Unit; only processes, sockets, time and random numbers are simulated. A seed determines
// the requests, the behavior of the processes, and how long everything takes. The test fails if a transition is not in the table, or if no
// seed makes one of the table.
func TestSimulation(t *testing.T) {
	taken := map[machine.Transition]bool{}
	first, last := uint64(1), *seeds
	if *only > 0 {
		first, last = *only, *only
	}
	for seed := first; seed <= last; seed++ {
		w := newWorld(seed, taken)
		if wrong := w.run(); len(wrong) > 0 || *only > 0 {
			for _, line := range w.told {
				t.Log(line)
			}
			t.Fatalf("seed %d: %v", seed, wrong)
		}
	}
	if *only > 0 || *seeds < 5000 {
		return
	}
	for _, row := range machine.Table {
		for _, from := range append(row.From, row.From[len(row.From):]...) {
			if !taken[machine.Transition{From: from, On: row.On, To: row.To}] {
				t.Errorf("%s → %s, %s, %q is never taken", from, row.To, row.On, row.If)
			}
		}
		if row.From == nil && !taken[machine.Transition{On: row.On, To: row.To}] {
			t.Errorf("new → %s, %s, %q is never taken", row.To, row.On, row.If)
		}
	}
}

// config is the configuration of a plugin.
type config struct {
	number   int
	serves   bool
	survives bool
	upgrade  plugin.Upgrade
	policy   plugin.RestartPolicy
	offered  bool // it is started on demand
}

// alone reports whether two of its processes must not run at the same time.
func (c config) alone() bool { return !c.serves || c.upgrade == plugin.UpgradeRecreate }

// world is a plugin and its environment.
type world struct {
	*simulate.Sim
	unit  *supervise.Unit
	cfg   config
	calm  bool // nothing fails any more
	procs []*proc
	told  []string
	wrong []string
	// asked and answered count requests. stopped is set while the last request was a stop.
	asked, answered int
	stopped         bool
	halts           int  // how often it was stopped or removed
	halted          bool // it was stopped, and must not run before it is started
	barred          bool // it was stopped, and there was no request since
	phases          map[machine.Ref]machine.Phase
	launching       map[context.Context]bool
	closed          bool
	acted           time.Time
	restarts        []time.Time
	needed          bool
	awaited         int // starts, replacements and demands without an answer
	events          map[plugin.EventKind]int
	ready           int // processes that became ready for the first time
}

// proc is one process.
type proc struct {
	w              *world
	cfg            config
	pid            int
	socket         string
	registered     bool
	ended, told    bool
	unfit, lost    bool
	hangs          bool               // it ignores requests to stop
	unwanted       bool               // it survived, and the plugin was stopped
	until          context.CancelFunc // ends the process
	over           context.Context    //nolint:containedctx // done when the process has ended
	began          time.Time
	survivor, left bool
	adopted        bool // Wait was called; the host stops a survivor that is not adopted
}

func newWorld(seed uint64, taken map[machine.Transition]bool) *world {
	w := &world{
		Sim: simulate.New(seed), events: map[plugin.EventKind]int{}, phases: map[machine.Ref]machine.Phase{},
		launching: map[context.Context]bool{},
	}
	w.unit = supervise.New(w, w.Sim)
	w.unit.ObserveTransitions(func(ref machine.Ref, step machine.Transition) {
		taken[step] = true
		w.phases[ref] = step.To
		w.say("%d: %s → %s, %s", ref, step.From, step.To, step.On)
		woken := step.From == machine.Idle && step.On == machine.ByDemand || step.From == machine.BackingOff && step.On == machine.ByTimer
		if woken && step.To == machine.Starting && w.cfg.policy.Policy == machine.OnDemand && !w.needed && w.awaited == 0 {
			w.fail("a start that nobody needs")
		}
		if !slices.ContainsFunc(machine.Table, func(r machine.Row) bool { return r.Has(step) }) {
			w.fail("%s → %s, %s is not in the table", step.From, step.To, step.On)
		}
	})
	return w
}

func (w *world) Needed() bool { return w.needed }

func (w *world) Observe(e plugin.Event) {
	w.events[e.Kind]++
	w.say("event %s: %s", e.Kind, e.Message)
}

func (w *world) say(format string, args ...any) {
	w.told = append(w.told, w.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.say("WRONG: "+format, args...)
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

func (w *world) alive() (list []*proc) {
	for _, p := range w.procs {
		if !p.ended && (p.adopted || !p.survivor) {
			list = append(list, p)
		}
	}
	return list
}

var errFault = errors.New("fault")

// program starts the plugin with one configuration.
type program struct {
	*world

	cfg config
}

func (p program) Launch(ctx context.Context, _ machine.Ref) (supervise.Process, error) {
	w, cfg := p.world, p.cfg
	w.noteStart(cfg)
	w.launching[ctx] = true
	defer delete(w.launching, ctx)
	if err := w.Sleep(ctx, w.Between(0, 2*time.Second)); err != nil && !w.OneIn(3) { // the end of ctx may come too late for the start
		return nil, err
	}
	switch {
	case w.calm || !w.OneIn(6):
	case w.OneIn(2):
		return nil, w.blocked()
	default:
		return nil, errFault
	}
	if !w.calm && w.OneIn(6) {
		return nil, syscall.ETXTBSY
	}
	return w.begin(cfg), nil
}

// blocked returns an error that lasts until a change within a minute.
func (w *world) blocked() error {
	return &supervise.BlockedError{Err: errFault, AwaitChange: func(ctx context.Context) { _ = w.Sleep(ctx, w.Between(0, time.Minute)) }}
}

// noteStart checks that a process may be started now.
func (w *world) noteStart(cfg config) {
	up := w.alive()
	for _, p := range up {
		if cfg.alone() && p.cfg.alone() {
			w.fail("a second process of one that runs alone beside %d", p.pid)
		}
	}
	if len(up) > 1 {
		w.fail("a third process")
	}
	if w.closed {
		w.fail("a start after the end of the host")
	}
	w.restarts = append(w.restarts, w.Now())
}

func (w *world) begin(cfg config) *proc {
	life, until := context.WithCancel(context.Background())
	pid := len(w.procs) + 1
	p := &proc{w: w, cfg: cfg, pid: pid, socket: fmt.Sprintf("/s%d", pid), over: life, until: until, began: w.Now()}
	w.procs = append(w.procs, p)
	w.say("process %d of configuration %d", pid, cfg.number)
	if !w.calm && w.OneIn(2) {
		w.AfterFunc(w.Between(0, 90*time.Second), until)
	}
	return p
}

func (p *proc) About() machine.Process {
	return machine.Process{Identity: fmt.Sprint(p.cfg.number), PID: p.pid, Socket: p.socket}
}

func (p *proc) Wait(ctx context.Context) error {
	p.adopted = true
	for both := (either{ctx, p.over}); both.Err() == nil; {
		_ = p.w.Sleep(both, time.Hour)
	}
	if p.over.Err() == nil {
		p.left = true
		return ctx.Err()
	}
	p.ended, p.registered = true, false
	p.w.say("process %d has ended", p.pid)
	if p.w.OneIn(2) {
		return nil
	}
	return errFault
}

// either is done when one of two contexts is.
type either struct {
	context.Context                 //nolint:containedctx // it combines two
	other           context.Context //nolint:containedctx // it combines two
}

func (e either) Err() error {
	if err := e.Context.Err(); err != nil {
		return err
	}
	return e.other.Err()
}

func (p *proc) Terminate(ctx context.Context) {
	w := p.w
	w.say("process %d is told to end, at once: %t", p.pid, ctx.Err() != nil)
	if p.told {
		w.fail("process %d is told to end twice", p.pid)
	}
	p.told = true
	if p.hangs && ctx.Err() == nil {
		w.fail("process %d hangs, and is asked to end", p.pid)
	}
	if p.registered && !w.stopped && !w.closed && !p.unfit && !p.survivor && !p.cfg.alone() && !w.cfg.alone() {
		if !slices.ContainsFunc(w.alive(), func(o *proc) bool { return o != p && o.registered }) && !p.lost {
			w.fail("process %d is ended, and nobody serves", p.pid)
		}
	}
	_ = w.Sleep(ctx, w.Between(0, 4*time.Second))
	p.until()
}

func (p *proc) AwaitReady(ctx context.Context, refused func(error)) error {
	w := p.w
	if err := w.Sleep(ctx, w.Between(0, 3*time.Second)); err != nil {
		return err
	}
	if !w.calm && w.OneIn(12) {
		p.unfit = true
		hangs := w.OneIn(2)
		p.hangs = hangs && !p.survivor && w.unit.Process() == supervise.Process(p)
		if w.unit.Unfit(p, errFault, hangs); !p.survivor { // an adopted survivor keeps running
			return errFault
		}
	}
	switch {
	case w.calm || !w.OneIn(4):
	case w.OneIn(2):
		if p.cfg.offered && !w.needed {
			p.unfit = true
			w.unit.Unneeded(p)
		}
		why := errFault
		if w.OneIn(2) {
			why = w.blocked()
		}
		refused(why) // it may still be registered
		if err := w.Sleep(ctx, w.Between(0, 20*time.Second)); err != nil {
			return err
		}
	default: // it is not ready before the faults stop
		for !w.calm {
			if err := w.Sleep(ctx, time.Minute); err != nil {
				return err
			}
		}
	}
	p.registered = true
	w.ready++
	return nil
}

func (p *proc) FollowHealth(ctx context.Context, found func(machine.HealthFound)) {
	w := p.w
	states := []plugin.ServingStatus{plugin.ServingStatusServing, plugin.ServingStatusNotServing, plugin.ServingStatusUnresponsive}
	for w.Sleep(ctx, w.Between(time.Second, 20*time.Second)) == nil {
		if p.cfg.offered && !w.needed && w.OneIn(2) {
			p.unfit = true
			w.unit.Unneeded(p)
			if w.unit.Status().State != plugin.StateIdle && !p.told && len(w.alive()) == 1 && len(w.launching) == 0 &&
				!slices.Contains(slices.Collect(maps.Values(w.phases)), machine.BackingOff) { // otherwise another one will replace it
				w.fail("nobody needs process %d, and it is not told to end", p.pid)
			}
		}
		state := states[w.IntN(len(states))]
		if w.calm {
			state = plugin.ServingStatusServing
		}
		p.unfit = p.unfit || state == plugin.ServingStatusUnresponsive && p.cfg.policy.Unresponsive
		found(machine.HealthFound{State: state, Err: errFault})
		if !w.calm && w.OneIn(8) {
			p.unfit = true
			w.unit.Unfit(p, errFault, w.OneIn(2))
		}
	}
}
