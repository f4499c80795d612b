package reconciler

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/plugin"
)

// resources are the connection, watches, calls and attempt of one instance. They are guarded by Reconciler.mu, except that the instance's
// job uses conn and staged without it.
type resources struct {
	conn    Conn
	staged  Staged
	cancels [jobKinds]context.CancelFunc
	// watches stop the active watches of the instance's sockets. probes stop watches opened by the latest Probe; KeepProbe promotes them,
	// otherwise they are stopped after the machine has the result.
	watches, probes [2]func()
	process         func() // stops the watch of the process
	attempt         attempt
	trace           trace.SpanContext // of all attempts
}

func (res *resources) empty() bool {
	for _, stop := range res.stops() {
		if *stop != nil {
			return false
		}
	}
	return res.conn == nil && res.staged == nil && res.cancels[attempting] == nil && res.cancels[calling] == nil &&
		res.attempt == attempt{} && !res.trace.IsValid()
}

func (res *resources) stops() [5]*func() {
	return [...]*func(){&res.watches[0], &res.watches[1], &res.probes[0], &res.probes[1], &res.process}
}

func (res *resources) unwatch() {
	for _, stop := range res.stops() {
		stopWatch(stop)
	}
}

func stopWatch(stop *func()) {
	if *stop != nil {
		(*stop)()
		*stop = nil
	}
}

// resourcesOf returns the resources of an instance, which it creates if there are none. mu is held.
func (r *Reconciler) resourcesOf(ref machine.Ref) *resources {
	res := r.resources[ref]
	if res == nil {
		res = &resources{}
		r.resources[ref] = res
	}
	return res
}

// job is the execution of an Ask, a Call or a Tell in a goroutine, followed by the calls that result from it.
type job struct {
	ctx    context.Context //nolint:containedctx // a job may wait for its goroutine
	cancel context.CancelFunc
	ref    machine.Ref
	effect machine.Effect // nil when it is done
	calls  string         // the function of the host's program that it is calling; empty if none
}

// jobKind distinguishes the jobs that an instance may have at the same time: its handler may be called while its socket is dialled again.
type jobKind uint8

const (
	attempting jobKind = iota // Ask and Tell
	calling                   // Call
	jobKinds
)

func kindOf(effect machine.Effect) jobKind {
	if _, ok := effect.(machine.Call); ok {
		return calling
	}
	return attempting
}

// newJob returns a job for an instance, which [machine.Cancel] cancels. mu is held.
func (r *Reconciler) newJob(ctx context.Context, ref machine.Ref, effect machine.Effect) *job {
	res := r.resourcesOf(ref)
	ctx, cancel := context.WithCancel(res.traced(ctx))
	res.cancels[kindOf(effect)] = cancel
	return &job{ctx: ctx, cancel: cancel, ref: ref, effect: effect}
}

// reuseJob gives a job another effect, in the same context if the instance is the same. mu is held.
func (r *Reconciler) reuseJob(ctx context.Context, j *job, ref machine.Ref, effect machine.Effect) {
	if j.ref == ref && j.ctx.Err() == nil {
		j.effect = effect
		r.resourcesOf(ref).cancels[kindOf(effect)] = j.cancel
		return
	}
	j.cancel()
	*j = *r.newJob(ctx, ref, effect)
}

// execute executes effects. If they result from a job that is done, that job makes the first call. mu is held.
func (r *Reconciler) execute(ctx context.Context, effects []machine.Effect, done *job) {
	for _, effect := range effects {
		switch e := effect.(type) {
		case machine.Ask:
			queue := &r.queue
			if !e.First {
				queue = &r.retries
			}
			*queue = append(*queue, r.newJob(ctx, e.Ref, effect))
			r.dispatch(ctx)
		case machine.Call:
			if done != nil && done.effect == nil {
				r.reuseJob(ctx, done, e.Ref, effect)
			} else {
				j := r.newJob(ctx, e.Ref, effect)
				r.spawn(func() { r.runJobs(ctx, j, &slot{returned: true, stopTimer: func() {}}) })
			}
		case machine.Tell:
			j := r.newJob(ctx, e.Ref, effect)
			r.spawn(func() { r.refuse(ctx, j) })
		case machine.Probe:
			r.spawn(func() { r.probe(ctx, e) })
		case machine.Seek:
			r.spawn(func() { r.send(machine.Sought{Ref: e.Ref, Listens: r.cfg.Transport.Listens(e.Socket, e.Peer)}) })
		case machine.Forget:
			remove := func() error { return r.cfg.Registry.Remove(e.Type, e.Name, e.ID) }
			r.saveLater(ctx, "remove a plugin from the registry", machine.Entry(e), remove)
		case machine.DiscardLater:
			res := r.resourcesOf(e.Ref)
			discard := res.staged.Discard
			res.staged = nil
			r.saveLater(ctx, "take back a registration", e.Entry, discard)
		case machine.Reserve:
			r.reserve(ctx, e)
		case machine.SetTimer:
			r.setTimer(e)
		case machine.StopTimer:
			r.stopTimer(e.Timer)
		case machine.Emit:
			r.cfg.Observe(e.Event)
		case machine.Pass:
			r.cfg.OnTransition(e.Event)
		default:
			r.executeNow(effect)
		}
	}
}

// executeNow executes effects that start no goroutine. mu is held.
func (r *Reconciler) executeNow(effect machine.Effect) {
	switch e := effect.(type) {
	case machine.Cancel:
		if res := r.resources[e.Ref]; res != nil {
			for _, cancel := range res.cancels {
				if cancel != nil {
					cancel()
				}
			}
		}
	case machine.Close:
		r.closeConn(r.resourcesOf(e.Ref))
		r.tidy(e.Ref)
	case machine.Hand:
		r.transferResources(e)
	case machine.Begin:
		r.beginAttempt(e)
	case machine.End:
		r.endAttempt(e)
		r.tidy(e.Ref)
	case machine.Watch:
		r.watch(e)
	case machine.Unwatch:
		stopWatch(&r.resourcesOf(e.Ref).watches[e.Socket])
		r.tidy(e.Ref)
	case machine.KeepProbe:
		res := r.resourcesOf(e.Ref)
		stopWatch(&res.watches[e.Socket])
		res.watches[e.Socket], res.probes[e.Socket] = res.probes[e.Socket], nil
	case machine.WatchProcess:
		r.watchProcess(e)
	case machine.UnwatchProcess:
		stopWatch(&r.resourcesOf(e.Ref).process)
		r.tidy(e.Ref)
	case machine.Publish:
		res := r.resourcesOf(e.Ref)
		res.staged.Publish()
		res.staged = nil
	case machine.Confirm:
		r.cfg.Registry.Confirm(e.Type, e.Name, e.ID)
	case machine.Hide:
		r.cfg.Registry.Unreachable(e.Type, e.Name, e.ID, e.Reason)
	case machine.Distrust:
		r.cfg.Refused(e.Reason)
	case machine.Retire:
		delete(r.handlers, e.Handler)
	}
}

// tidy deletes the resources of an instance if they are empty. mu is held.
func (r *Reconciler) tidy(ref machine.Ref) {
	if res := r.resources[ref]; res != nil && res.empty() {
		delete(r.resources, ref)
	}
}

// transferResources moves the attempt and, with e.Conn, the connection from one instance to another. mu is held.
func (r *Reconciler) transferResources(e machine.Hand) {
	from, to := r.resourcesOf(e.From), r.resourcesOf(e.To)
	to.attempt, from.attempt = from.attempt, attempt{}
	if e.Conn {
		to.conn, from.conn = from.conn, nil
	}
	r.tidy(e.From)
	r.tidy(e.To)
}

type timer struct{ stop func() }

// setTimer sets a timer, instead of an earlier one with the same key. mu is held.
func (r *Reconciler) setTimer(e machine.SetTimer) {
	r.stopTimer(e.Timer)
	set := &timer{}
	set.stop = r.pace.AfterFunc(e.After, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.timers[e.Timer] == set {
			delete(r.timers, e.Timer)
			r.post(machine.Fired{Timer: e.Timer})
		}
	})
	r.timers[e.Timer] = set
}

// stopTimer stops a timer. If it has fired and waits for mu, it has no effect. mu is held.
func (r *Reconciler) stopTimer(key machine.Timer) {
	if set := r.timers[key]; set != nil {
		set.stop()
		delete(r.timers, key)
	}
}

// watch watches the plugin through its connection, which it takes over. mu is held.
func (r *Reconciler) watch(e machine.Watch) {
	res := r.resourcesOf(e.Ref)
	conn := res.conn
	res.conn = nil
	stop, err := conn.Watch(func() { r.send(machine.Hinted{Ref: e.Ref, Socket: machine.Registration}) })
	if err != nil {
		r.post(machine.Unwatchable(e))
		return
	}
	res.watches[machine.Registration] = stop
}

// watchProcess passes the exit of a process to the machine. mu is held.
func (r *Reconciler) watchProcess(e machine.WatchProcess) {
	res := r.resourcesOf(e.Ref)
	stopWatch(&res.process)
	stop, err := r.cfg.Transport.WatchProcess(e.Peer, func() { r.send(machine.Ended{Ref: e.Ref}) })
	if err != nil {
		r.post(machine.Ended{Ref: e.Ref})
		return
	}
	res.process = stop
}

func (r *Reconciler) probe(ctx context.Context, e machine.Probe) {
	probing, cancel := r.pace.WithTimeout(ctx, r.timeoutsOf(e.Type).Dial)
	defer cancel()
	stop, err := r.cfg.Transport.Probe(probing, e.Path, e.Identity, func() { r.send(machine.Hinted{Ref: e.Ref, Socket: e.Socket}) })
	f := r.failure(err)
	if f != nil && ctx.Err() == nil {
		f.Err = connectError(e.Path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.resourcesOf(e.Ref)
	stopWatch(&res.probes[e.Socket])
	res.probes[e.Socket] = stop
	r.step(ctx, machine.Probed{Ref: e.Ref, Socket: e.Socket, Path: e.Path, Failure: f, Watched: stop != nil}, nil)
	stopWatch(&res.probes[e.Socket]) // unless KeepProbe has moved it
	r.tidy(e.Ref)
}

// reserve records a reservation in the registry, and with e.Save also saves it. mu is held.
func (r *Reconciler) reserve(ctx context.Context, e machine.Reserve) {
	r.cfg.Registry.Reserve(e.Reservation)
	if name := e.Reservation.Plugin; e.Save {
		save := func() error { return r.cfg.Registry.SaveReservation(name) }
		r.saveLater(ctx, "save for whom a name is reserved", machine.Entry{Type: name.Type, Name: name.Name}, save)
	}
}

// unsaved are the changes of one name in the registry that are not saved yet, in their order, so that a restart does not restore an
// instance that was removed before another one.
type unsaved struct {
	todo  []change
	hurry context.CancelFunc // ends the pause before the next attempt; nil before the first pause
}

type change struct {
	what string
	e    machine.Entry
	do   func() error
}

// saveLater makes a change in the registry, after the earlier ones of the same name, and retries it until it is saved or the reconciler
// stops. In that case, the next start restores an instance and finds that it is gone. mu is held.
func (r *Reconciler) saveLater(ctx context.Context, what string, e machine.Entry, do func() error) {
	name := plugin.Name{Type: e.Type, Name: e.Name}
	u := r.unsaved[name]
	if u == nil {
		u = &unsaved{}
		r.unsaved[name] = u
		r.spawn(func() { r.saveAll(ctx, name, u) })
	}
	u.todo = append(u.todo, change{what, e, do})
	if u.hurry != nil {
		u.hurry()
	}
}

// saveAll makes the changes of a name until none is left.
func (r *Reconciler) saveAll(ctx context.Context, name plugin.Name, u *unsaved) {
	for attempt, next := 1, r.nextUnsaved(name, u, false); next != nil; {
		err := next.do()
		if err == nil {
			attempt, next = 1, r.nextUnsaved(name, u, true)
			continue
		}
		if attempt == 1 {
			r.log.Error("cannot "+next.what+"; trying again", "type", next.e.Type, "name", next.e.Name, "instance", next.e.ID, "error", err)
		}
		if r.pause(ctx, u, attempt); ctx.Err() != nil {
			return
		}
		attempt++
	}
}

// nextUnsaved returns the next change; nil if there is none. If done is true, it first removes the current one.
func (r *Reconciler) nextUnsaved(name plugin.Name, u *unsaved, done bool) *change {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done {
		u.todo = u.todo[1:]
	}
	if len(u.todo) == 0 {
		delete(r.unsaved, name)
		return nil
	}
	return &u.todo[0]
}

// pause waits until the next attempt is due, another change is added, or ctx ends.
func (r *Reconciler) pause(ctx context.Context, u *unsaved, attempt int) {
	ctx, hurry := context.WithCancel(ctx)
	defer hurry()
	r.mu.Lock()
	u.hurry = hurry
	r.mu.Unlock()
	_ = r.pace.Sleep(ctx, saveBackoff.At(attempt, r.pace.Chance()))
}

var saveBackoff = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Minute}

func (r *Reconciler) closeConn(res *resources) {
	if res.conn == nil {
		return
	}
	if err := res.conn.Close(); err != nil {
		r.log.Debug("cannot close a registration connection", "error", err)
	}
	res.conn = nil
}
