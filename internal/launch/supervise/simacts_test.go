package supervise_test

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/plugin"
)

// run simulates requests and faults for a while, and then checks that the plugin recovers without faults.
func (w *world) run() (wrong []string) {
	defer func() {
		if v := recover(); v != nil {
			w.fail("panic: %v", v)
			wrong = w.wrong
		}
	}()
	w.configure(false)
	for range 5 + w.IntN(40) {
		w.act()
		w.Pass([]time.Duration{0, time.Millisecond, 200 * time.Millisecond, 2 * time.Second, 40 * time.Second}[w.IntN(5)])
		w.check()
		if len(w.wrong) > 0 {
			return w.wrong
		}
	}
	if !w.OneIn(3) {
		w.settle()
	}
	w.end()
	return w.wrong
}

func (w *world) configure(changed bool) {
	number := w.cfg.number
	if changed || number == 0 {
		number++
	}
	restarts := []plugin.Restart{plugin.RestartAlways, plugin.RestartOnFailure, plugin.RestartNever, machine.OnDemand}
	if w.cfg.number == 0 {
		w.cfg = config{serves: !w.OneIn(3), survives: w.OneIn(2), policy: plugin.RestartPolicy{
			Policy: restarts[w.IntN(4)], Limit: 1 + w.IntN(4), Unresponsive: w.OneIn(2),
		}}
		if w.cfg.policy.Policy == machine.OnDemand {
			w.cfg.survives, w.cfg.serves, w.cfg.offered = false, true, w.OneIn(2)
			if !w.cfg.offered {
				w.cfg.policy.Limit = -1
			} else if w.OneIn(4) {
				w.cfg.upgrade = plugin.UpgradeRecreate
			}
		} else if w.OneIn(4) {
			w.cfg.upgrade = plugin.UpgradeRecreate
		}
	}
	w.cfg.number = number
	w.say("configuration %+v", w.cfg)
	w.awaited++
	w.unit.Configure(program{w, w.cfg}, machine.Description{
		Identity: w.cfg.identity(), Serves: w.cfg.serves, Survives: w.cfg.survives, Upgrade: w.cfg.upgrade, Restart: w.cfg.policy,
		StartTimeout: 10 * time.Second,
	}, changed, func(error) { w.awaited-- })
	if w.cfg.offered && number != 1 && w.stopped {
		return // a change of the configuration does not end the stop
	}
	if w.cfg.offered {
		w.unit.Tell(machine.Offer{})
	}
}

func (c config) identity() string { return (&proc{cfg: c}).About().Identity }

// act makes one request or change.
func (w *world) act() {
	before := len(w.procs)
	defer func() { w.halted = w.halted && w.stopped && len(w.procs) == before }()
	onDemand := w.cfg.policy.Policy == machine.OnDemand && !w.cfg.offered
	switch n := w.IntN(13); {
	case n < 3 && onDemand, n < 2 && w.cfg.offered:
		w.needed = true
		w.demand()
	case n < 3:
		w.needed = true
		w.ask("start", w.unit.Start)
		w.stopped, w.barred = false, false
	case n < 5 && !onDemand:
		w.stopped, w.barred, w.needed = false, false, true
		withdraw := w.ask("replace", w.unit.Replace)
		if w.OneIn(3) {
			w.AfterFunc(w.Between(0, 5*time.Second), func() { withdraw(errors.New("nobody waits")) })
		}
	case n == 5 && !onDemand:
		w.stopped, w.barred = true, true
		w.halts++
		w.ask("stop", func(done func(error)) func(error) {
			return w.unit.Stop(func(err error) {
				w.checkStopped()
				w.halted = w.stopped
				done(err)
			})
		})
	case n == 6:
		w.stopped, w.halted, w.barred = true, false, false
		w.halts++
		w.ask("remove", w.unit.Remove)
		w.configure(false) // it is configured again
		if w.cfg.offered {
			w.stopped = false
			for _, p := range w.alive() {
				p.unfit = true // it is stopped, because the plugin was removed
			}
			w.unit.Tell(machine.Offer{})
		}
	case n == 7 && !onDemand:
		idle := w.unit.Status().State == plugin.StateIdle
		w.needed = w.needed || !idle
		if w.configure(true); idle && w.unit.Status().State != plugin.StateIdle {
			w.fail("another configuration starts what is idle")
		}
	case n == 8 && !onDemand && !w.cfg.offered:
		p := w.begin(config{number: w.cfg.number - w.IntN(2), serves: w.cfg.serves, survives: true, upgrade: w.cfg.upgrade})
		p.survivor, p.unwanted = true, w.barred
		w.say("process %d survived", p.pid)
		w.unit.Survivor(p)
	case (n == 9 || n == 12) && !onDemand && !w.cfg.offered:
		for _, p := range w.alive() {
			if p.registered {
				p.lost = true
				w.unit.Tell(machine.SocketLost{Socket: p.socket})
			}
		}
	case n == 10:
		w.needed = false
	case n == 11 && w.OneIn(4):
		w.unit.Kill()
	}
}

func (w *world) demand() {
	w.ask("demand", func(done func(error)) func(error) {
		return w.unit.Demand(func(err error) {
			if err == nil && !slices.ContainsFunc(w.alive(), func(p *proc) bool { return !p.told }) {
				w.fail("a demand is answered, and no process runs")
			}
			done(err)
		})
	})
}

// ask makes a request, and checks that it gets exactly one answer, at the latest when it is withdrawn. The answer must not be that the
// plugin was stopped unless it was.
func (w *world) ask(what string, ask func(done func(error)) func(error)) func(error) {
	w.say("%s", what)
	w.asked++
	w.acted = w.Now()
	if what != "stop" && what != "remove" {
		w.awaited++
	}
	once, halts := false, w.halts
	withdraw := ask(func(err error) {
		w.say("%s is answered: %v", what, err)
		if once {
			w.fail("%s is answered twice", what)
		}
		if err != nil && strings.HasSuffix(err.Error(), "it was stopped meanwhile") && w.halts == halts && !w.closed &&
			(what == "demand" || w.cfg.upgrade == plugin.UpgradeRecreate) {
			w.fail("%s is answered as if it was stopped", what)
		}
		once = true
		w.answered++
		if what != "stop" && what != "remove" {
			w.awaited--
		}
	})
	return func(err error) {
		if withdraw(err); !once {
			w.fail("%s is not answered although nobody waits any more", what)
		}
	}
}

// checkStopped checks that the processes that ran when a stop was requested have ended when it is answered.
func (w *world) checkStopped() {
	if !w.stopped {
		return // it was started again before the answer
	}
	for _, p := range w.alive() {
		if !p.told {
			w.fail("process %d runs after a stop", p.pid)
		}
	}
}

// check checks what must always be true.
func (w *world) check() {
	if w.halted {
		w.checkStopped()
	}
	w.checkProcesses()
	s := w.unit.Status()
	if s.State == plugin.StateIdle && slices.ContainsFunc(w.alive(), func(p *proc) bool { return !p.told }) {
		w.fail("a process that is not told to end is there while it is %+v", s)
	}
	if (s.State == plugin.StateBackoff) == s.NextStart.IsZero() {
		w.fail("it is %+v", s)
	}
	if s.NextStart.Before(w.Now()) && !s.NextStart.IsZero() {
		w.fail("it is to be started in the past: %+v", s)
	}
	running := s.State == plugin.StateRunning || s.State == plugin.StateUnresponsive
	if running && (s.PID == 0 || w.procs[s.PID-1].ended || w.cfg.serves && !w.procs[s.PID-1].registered) {
		w.fail("it is %+v", s)
	}
	if limit := w.cfg.policy.Limit; limit > 0 && s.Restarts > 0 && s.Restarts > limit+int(w.Now().Sub(w.acted)/(10*time.Minute)+1)*limit {
		w.fail("%d restarts with a limit of %d", s.Restarts, limit)
	}
	w.checkHealth(s)
	if w.events[plugin.EventReady] > w.ready && w.cfg.serves {
		w.fail("%d times ready, and %d processes were registered", w.events[plugin.EventReady], w.ready)
	}
}

// checkHealth checks that a plugin in trouble needs attention, and that one that is fit again recovers in time.
func (w *world) checkHealth(s plugin.LaunchStatus) {
	trouble := []plugin.State{plugin.StateFailed, plugin.StateBlocked, plugin.StateUnresponsive, plugin.StateUnlinked}
	fit := s.State == plugin.StateIdle || s.State == plugin.StateRunning && s.ServingStatus != plugin.ServingStatusNotServing
	switch {
	case slices.Contains(trouble, s.State) && s.FailingSince.IsZero():
		w.fail("nothing has failed, and it is %+v", s)
	case s.FailingSince.IsZero() && !s.HealthyFrom.IsZero(), !s.FailingSince.IsZero() && fit == s.HealthyFrom.IsZero():
		w.fail("it is healthy from %v, and it is %+v", s.HealthyFrom, s)
	case !s.HealthyFrom.IsZero() && s.HealthyFrom.Before(w.Now()):
		w.fail("it has not recovered, and it is %+v", s)
	}
}

// checkProcesses checks that canceled starts end, and that no process of a stopped plugin is adopted.
func (w *world) checkProcesses() {
	starting, started := 0, 0
	for _, phase := range w.phases {
		if phase == machine.Starting {
			starting++
		}
	}
	for ctx := range w.launching {
		if ctx.Err() == nil {
			started++
		}
	}
	if started > starting {
		w.fail("%d starts go on, and %d are wanted", started, starting)
	}
	for _, p := range w.procs {
		if p.unwanted && p.adopted {
			w.fail("process %d is taken over, and the plugin was stopped", p.pid)
		}
	}
}

// settle stops all faults, and checks that every request is answered and the plugin runs if it should.
func (w *world) settle() {
	w.calm = true
	w.needed = true
	w.Pass(20 * time.Minute)
	if w.asked != w.answered {
		w.fail("%d asked, and %d were answered", w.asked, w.answered)
	}
	if w.cfg.policy.Policy == machine.OnDemand {
		w.demand()
	}
	if s := w.unit.Status().State; w.cfg.policy.Policy != machine.OnDemand || s == plugin.StateStopped || s == plugin.StateFailed {
		w.ask("start", w.unit.Start)
	}
	w.stopped = false
	w.Pass(20 * time.Minute)
	w.check()
	s := w.unit.Status()
	if s.State != plugin.StateRunning {
		w.fail("in the end it is %+v", s)
	}
	if up := w.alive(); len(up) > 1 {
		w.fail("in the end %d processes run", len(up))
	}
	if p, runs := w.unit.Process().(*proc); s.State == plugin.StateRunning && (!runs || p.pid != s.PID || p.cfg.number != w.cfg.number && !w.failedToReplace()) {
		w.fail("in the end %+v runs, of configuration %d", s, w.cfg.number)
	}
}

// end ends the host, and checks that only survivors keep running and every request is answered.
func (w *world) end() {
	s := w.unit.Status()
	w.closed = true
	w.say("the host ends")
	w.unit.Tell(machine.Close{})
	w.Pass(time.Minute)
	for _, p := range w.alive() {
		if !p.cfg.survives || !p.left {
			w.fail("process %d outlives the host", p.pid)
		}
	}
	for _, p := range w.procs {
		if p.survivor && !p.adopted && !p.told {
			w.fail("nobody cares for process %d, which survived", p.pid)
		}
	}
	if w.calm && w.cfg.survives && s.State == plugin.StateRunning && len(w.alive()) != 1 {
		w.fail("what survives does not")
	}
	if w.asked != w.answered || w.Tasks() > 0 {
		w.fail("%d asked, %d were answered, and %d goroutines are left", w.asked, w.answered, w.Tasks())
	}
}

// failedToReplace reports whether a replacement has failed, so that the older process keeps running.
func (w *world) failedToReplace() bool { return w.events[plugin.EventFailed] > 0 }
