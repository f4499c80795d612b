package reconciler

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/plugin"
)

// resources are what the runner holds for one instance. Guarded by Reconciler.mu, except that conn and staged are used by whoever runs the
// job that is about them, of which there is one at a time.
type resources struct {
	conn    Conn
	staged  Staged
	cancels [jobKinds]context.CancelFunc
	// watches end the watches of its sockets, and probes those of the last probes, which nobody keeps yet.
	watches, probes [2]func()
	process         func() // ends the watch of its process
	attempt         attempt
	trace           trace.SpanContext // of the trace that its attempts belong to
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
		end(stop)
	}
}

func end(stop *func()) {
	if *stop != nil {
		(*stop)()
		*stop = nil
	}
}

// of returns what is held for an instance. mu is held.
func (r *Reconciler) of(ref machine.Ref) *resources {
	res := r.resources[ref]
	if res == nil {
		res = &resources{}
		r.resources[ref] = res
	}
	return res
}

// job is something that a goroutine does for the machine: an Ask, a Call or a Tell. One that is done has no effect any more, and may become
// the next one.
type job struct {
	ctx    context.Context //nolint:containedctx // it is that of the goroutine to come
	cancel context.CancelFunc
	ref    machine.Ref
	effect machine.Effect
}

// jobKind says which of the jobs for an instance one is: a handler may be told to let go of it while it is being asked.
type jobKind uint8

const (
	attempting jobKind = iota // to ask it, or to tell it of its refusal
	calling                   // in its lane
	jobKinds
)

func kindOf(effect machine.Effect) jobKind {
	if _, ok := effect.(machine.Call); ok {
		return calling
	}
	return attempting
}

// newJob returns a job for an instance, which Cancel abandons. mu is held.
func (r *Reconciler) newJob(ctx context.Context, ref machine.Ref, effect machine.Effect) *job {
	res := r.of(ref)
	ctx, cancel := context.WithCancel(res.traced(ctx))
	res.cancels[kindOf(effect)] = cancel
	return &job{ctx, cancel, ref, effect}
}

// goOn makes a job that is done one for another effect, in the same context if it is about the same instance. mu is held.
func (r *Reconciler) goOn(ctx context.Context, j *job, ref machine.Ref, effect machine.Effect) {
	if j.ref == ref && j.ctx.Err() == nil {
		j.effect = effect
		r.of(ref).cancels[kindOf(effect)] = j.cancel
		return
	}
	j.cancel()
	*j = *r.newJob(ctx, ref, effect)
}

// execute does what the machine asks for. The job that led to it, if there is one, becomes that of the first call. mu is held.
func (r *Reconciler) execute(ctx context.Context, effects []machine.Effect, done *job) {
	for _, effect := range effects {
		switch e := effect.(type) {
		case machine.Ask:
			queue := &r.queue
			if !e.First {
				queue = &r.again
			}
			*queue = append(*queue, r.newJob(ctx, e.Ref, effect))
			r.dispatch(ctx)
		case machine.Call:
			if done != nil && done.effect == nil {
				r.goOn(ctx, done, e.Ref, effect)
			} else {
				j := r.newJob(ctx, e.Ref, effect)
				r.spawn(func() { r.work(ctx, j, &slot{given: true}) })
			}
		case machine.Tell:
			j := r.newJob(ctx, e.Ref, effect)
			r.spawn(func() { r.refuse(ctx, j) })
		case machine.Probe:
			r.spawn(func() { r.probe(ctx, e) })
		case machine.Seek:
			r.spawn(func() { r.say(machine.Sought{Ref: e.Ref, Listens: r.cfg.Transport.Listens(e.Socket, e.Peer)}) })
		case machine.Forget:
			remove := func() error { return r.cfg.Registry.Remove(e.Type, e.Name, e.ID) }
			r.untilDone(ctx, "remove a plugin from the registry", machine.Entry(e), remove)
		case machine.DiscardLater:
			res := r.of(e.Ref)
			discard := res.staged.Discard
			res.staged = nil
			r.untilDone(ctx, "take back a registration", e.Entry, discard)
		case machine.Reserve:
			r.reserve(ctx, e)
		case machine.SetTimer, machine.StopTimer:
			r.setTimer(effect)
		case machine.Emit:
			r.cfg.Observe(e.Event)
		case machine.Pass:
			r.cfg.Passed(e.Event)
		default:
			r.executeNow(effect)
		}
	}
}

// executeNow does what is done at once. mu is held.
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
		r.closeConn(r.of(e.Ref))
		r.tidy(e.Ref)
	case machine.Hand:
		r.hand(e)
	case machine.Begin:
		r.beginAttempt(e)
	case machine.End:
		r.endAttempt(e)
		r.tidy(e.Ref)
	case machine.Watch:
		r.watch(e)
	case machine.Unwatch:
		end(&r.of(e.Ref).watches[e.Socket])
		r.tidy(e.Ref)
	case machine.KeepProbe:
		res := r.of(e.Ref)
		end(&res.watches[e.Socket])
		res.watches[e.Socket], res.probes[e.Socket] = res.probes[e.Socket], nil
	case machine.WatchProcess:
		r.watchProcess(e)
	case machine.UnwatchProcess:
		end(&r.of(e.Ref).process)
		r.tidy(e.Ref)
	case machine.Publish:
		res := r.of(e.Ref)
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

// tidy forgets what is held for an instance if that is nothing. mu is held.
func (r *Reconciler) tidy(ref machine.Ref) {
	if res := r.resources[ref]; res != nil && res.empty() {
		delete(r.resources, ref)
	}
}

// hand gives what is held for one instance to another. mu is held.
func (r *Reconciler) hand(e machine.Hand) {
	from, to := r.of(e.From), r.of(e.To)
	to.attempt, from.attempt = from.attempt, attempt{}
	if e.Conn {
		to.conn, from.conn = from.conn, nil
	}
	r.tidy(e.From)
	r.tidy(e.To)
}

type timer struct{ stop func() }

// setTimer sets or stops a timer. One that is set anew or stopped says nothing, even if it fired already. mu is held.
func (r *Reconciler) setTimer(effect machine.Effect) {
	switch e := effect.(type) {
	case machine.SetTimer:
		if before := r.timers[e.Timer]; before != nil {
			before.stop()
		}
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
	case machine.StopTimer:
		if set := r.timers[e.Timer]; set != nil {
			set.stop()
			delete(r.timers, e.Timer)
		}
	}
}

// watch has the machine told of hints on a connection. mu is held.
func (r *Reconciler) watch(e machine.Watch) {
	res := r.of(e.Ref)
	conn := res.conn
	res.conn = nil
	stop, err := conn.Watch(func() { r.say(machine.Hinted{Ref: e.Ref, Socket: machine.Registration}) })
	if err != nil {
		r.post(machine.Unwatchable(e))
		return
	}
	res.watches[machine.Registration] = stop
}

// watchProcess has the machine told when a process ends. mu is held.
func (r *Reconciler) watchProcess(e machine.WatchProcess) {
	res := r.of(e.Ref)
	end(&res.process)
	stop, err := r.cfg.Transport.WatchProcess(e.Peer, func() { r.say(machine.Ended{Ref: e.Ref}) })
	if err != nil {
		r.post(machine.Ended{Ref: e.Ref})
		return
	}
	res.process = stop
}

func (r *Reconciler) probe(ctx context.Context, e machine.Probe) {
	probing, cancel := r.pace.WithTimeout(ctx, r.timeouts(e.Type).Dial)
	defer cancel()
	stop, err := r.cfg.Transport.Probe(probing, e.Path, e.Identity, func() { r.say(machine.Hinted{Ref: e.Ref, Socket: e.Socket}) })
	f := r.failure(err)
	if f != nil && ctx.Err() == nil {
		f.Err = connectError(e.Path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.of(e.Ref)
	end(&res.probes[e.Socket])
	res.probes[e.Socket] = stop
	r.step(ctx, machine.Probed{Ref: e.Ref, Socket: e.Socket, Path: e.Path, Failure: f, Watched: stop != nil}, nil)
	end(&res.probes[e.Socket]) // unless it was kept
	r.tidy(e.Ref)
}

// reserve passes a reservation to the registry. mu is held.
func (r *Reconciler) reserve(ctx context.Context, e machine.Reserve) {
	r.cfg.Registry.Reserve(e.Reservation)
	if name := e.Reservation.Plugin; e.Save {
		save := func() error { return r.cfg.Registry.SaveReservation(name) }
		r.untilDone(ctx, "save for whom a name is reserved", machine.Entry{Type: name.Type, Name: name.Name}, save)
	}
}

// unsaved is what is to be done to the registry about one name and is not on disk yet, in order: a restart in between must not find the
// instance that went first.
type unsaved struct {
	todo  []undone
	hurry context.CancelFunc // ends the pause before the next attempt; nil before there is one
}

type undone struct {
	what string
	e    machine.Entry
	do   func() error
}

// untilDone does something to the registry, after what is to be done about the same name, again and again until it is on disk. If the
// reconciler ends before, the next start restores an instance that it finds dead. mu is held.
func (r *Reconciler) untilDone(ctx context.Context, what string, e machine.Entry, do func() error) {
	name := plugin.Name{Type: e.Type, Name: e.Name}
	u := r.unsaved[name]
	if u == nil {
		u = &unsaved{}
		r.unsaved[name] = u
		r.spawn(func() { r.saveAll(ctx, name, u) })
	}
	u.todo = append(u.todo, undone{what, e, do})
	if u.hurry != nil {
		u.hurry()
	}
}

// saveAll does what is to be done about a name, until nothing is left.
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

// nextUnsaved returns what is to be done next, after the one before if that is done; nil if nothing is.
func (r *Reconciler) nextUnsaved(name plugin.Name, u *unsaved, done bool) *undone {
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

// pause waits until it is time for another attempt, or there is more to be done.
func (r *Reconciler) pause(ctx context.Context, u *unsaved, attempt int) {
	ctx, hurry := context.WithCancel(ctx)
	defer hurry()
	r.mu.Lock()
	u.hurry = hurry
	r.mu.Unlock()
	_ = r.pace.Sleep(ctx, saving.At(attempt, r.pace.Chance())) // which ends early only for the reasons above
}

var saving = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Minute}

func (r *Reconciler) closeConn(res *resources) {
	if res.conn == nil {
		return
	}
	if err := res.conn.Close(); err != nil {
		r.log.Debug("cannot close a registration connection", "error", err)
	}
	res.conn = nil
}
