package reconciler

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/internal/registration"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	// A job keeps its slot for slotHold/(1+n/manyWait), where n attempts wait for an answer without a slot: silent plugins are usually many.
	// On a slow machine it keeps it for longer, so that it loses the slot because its plugin hangs, and not because all are slow: for
	// answerTimes the time of a quick answer. Plugins may be slow on purpose, so this is at most maxConnects times the time that connecting
	// takes. The minimum is minHold, or minConnects times the time that connecting takes.
	slotHold, minHold        = 25 * time.Millisecond, 2 * time.Millisecond
	manyWait                 = 32
	answerTimes              = 32
	minConnects, maxConnects = 100, 20_000
	// A slot whose timer is late by more than its duration begins again, maxStalls times: this process did not run, and nobody could answer.
	maxStalls = 4
	// Every retryEvery-th free slot goes to a retry before first attempts, so that many new sockets do not delay retries for long.
	retryEvery = 4
	// A new socket on which nobody listens yet is dialled again refusedTries times without a pause, because bind and listen are usually
	// microseconds apart, and then after each refusedPause. Timers make a shorter pause last as long.
	refusedTries = 16
	refusedPause = time.Millisecond
)

// dispatch starts a goroutine for each waiting job while slots are free. mu is held.
func (r *Reconciler) dispatch(ctx context.Context) {
	for r.free > 0 {
		j := r.nextJob(ctx)
		if j == nil {
			return
		}
		r.free--
		r.spawn(func() { r.runJobs(ctx, j, nil) })
	}
}

// nextJob removes and returns the job that gets the next slot; nil if none waits or the reconciler stops, because a plugin must not be
// notified of a registration that stop discards. Saved instances come first, then first attempts, then retries. mu is held.
func (r *Reconciler) nextJob(ctx context.Context) (j *job) {
	if r.stopped || ctx.Err() != nil {
		return nil
	}
	queues := [...]*[]*job{&r.saved, &r.queue, &r.retries}
	if r.dispatched++; r.dispatched%retryEvery == 0 {
		queues[1], queues[2] = queues[2], queues[1]
	}
	for _, queue := range queues {
		if q := *queue; len(q) > 0 {
			j, q[0] = q[0], nil
			*queue = q[1:]
			return j
		}
	}
	return nil
}

// slot is the right of one goroutine to run jobs. A timer returns it early, so that slow plugins do not occupy all slots.
type slot struct {
	retry bool // its attempt is not the first one

	// Guarded by Reconciler.mu. waits is true while the attempt waits for an answer, and counted if unanswered includes it.
	taken                    time.Time
	stopTimer                func()
	stalls                   int // how often its timer was late
	returned, waits, counted bool
}

func (r *Reconciler) takeSlot(ctx context.Context, j *job) *slot {
	e, asks := j.effect.(machine.Ask)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &slot{taken: r.pace.Now(), retry: asks && !e.First}
	r.startTimer(ctx, s, r.hold(s.retry))
	return s
}

// startTimer calls expire after d. mu is held.
func (r *Reconciler) startTimer(ctx context.Context, s *slot, d time.Duration) {
	due := r.pace.Now().Add(d)
	s.stopTimer = r.pace.AfterFunc(d, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if now := r.pace.Now(); now.Sub(due) > d && s.stalls < maxStalls {
			s.stalls++
			s.taken = now
		}
		r.expire(ctx, s)
	})
}

// expire returns a slot that was held for long enough, according to what has been measured until now, and waits otherwise. mu is held.
func (r *Reconciler) expire(ctx context.Context, s *slot) {
	if left := r.hold(s.retry) - r.pace.Now().Sub(s.taken); left > 0 && !s.returned {
		r.startTimer(ctx, s, left)
		return
	}
	r.returnSlot(ctx, s)
}

// hold returns how long a job keeps its slot. mu is held.
func (r *Reconciler) hold(retry bool) time.Duration {
	connecting, answering := r.cfg.Transport.Latencies()
	shortest := max(minHold, minConnects*connecting)
	if retry {
		return shortest // the plugin has hung before
	}
	return max(shortest, slotHold/time.Duration(1+r.unanswered/manyWait), min(answerTimes*answering, maxConnects*connecting))
}

// returnSlot returns a slot, unless it was returned, and starts waiting jobs. mu is held.
func (r *Reconciler) returnSlot(ctx context.Context, s *slot) {
	if s.waits && !s.returned {
		s.counted = true
		r.unanswered++
	}
	r.freeSlot(s)
	r.dispatch(ctx)
}

// setWaits records whether the attempt of a slot waits for an answer.
func (r *Reconciler) setWaits(s *slot, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.waits = waits; !waits && s.counted {
		s.counted = false
		r.unanswered--
	}
}

// freeSlot returns a slot, unless it was returned. mu is held.
func (r *Reconciler) freeSlot(s *slot) {
	if !s.returned {
		s.returned = true
		if r.free++; r.free == r.slots {
			r.stopGathering()
		}
	}
}

// passOn returns the job that runs next in a slot; nil if none waits or the slot was returned.
func (r *Reconciler) passOn(ctx context.Context, s *slot) (next *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.stopTimer()
	if s.returned {
		return nil
	}
	if next = r.nextJob(ctx); next == nil {
		r.freeSlot(s)
	}
	s.returned = true
	return next
}

// runJobs runs a job, and then those that get its slot. If s is nil, the job has just got a slot.
func (r *Reconciler) runJobs(ctx context.Context, j *job, s *slot) {
	for ; j != nil; j, s = r.passOn(ctx, s), nil {
		if s == nil {
			s = r.takeSlot(ctx, j)
			if e, ok := j.effect.(machine.Ask); ok {
				r.ask(ctx, j, e, s)
			}
		}
		r.work(ctx, j, s)
	}
}

func (r *Reconciler) ask(ctx context.Context, j *job, e machine.Ask, s *slot) {
	r.setWaits(s, true)
	conn, info, err := r.identify(j.ctx, e, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.returnSlot(ctx, s)
	})
	r.setWaits(s, false)
	answer := machine.Answered{Ref: e.Ref, Path: e.Path, Info: info, Failure: r.failure(err)}
	if conn != nil {
		answer.Peer, answer.Account = conn.Peer(), conn.Account()
	}
	r.done(ctx, j, answer, conn)
}

// done passes the result of a job to the machine. If a call follows from it, it becomes the job's next effect.
func (r *Reconciler) done(ctx context.Context, j *job, result machine.Input, conn Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := j.ref
	res := r.resourcesOf(ref)
	res.cancels[kindOf(j.effect)] = nil
	if conn != nil {
		res.conn = conn
	}
	j.effect = nil
	r.step(ctx, result, j)
	r.tidy(ref)
	if j.effect == nil {
		j.cancel()
	}
}

// identify dials a socket and calls GetInfo. With an error it may also return the connection and the answer. It calls pausing before it
// waits for a plugin to listen.
func (r *Reconciler) identify(ctx context.Context, e machine.Ask, pausing func()) (Conn, plugin.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, plugin.Info{}, err // it was canceled while it waited for a slot
	}
	timeouts := r.timeoutsOf(e.Type)
	conn, err := r.dial(ctx, e, timeouts.Dial, pausing)
	if err != nil {
		return nil, plugin.Info{}, err
	}
	ctx, done := r.trace(ctx, "GetInfo")
	info, err := conn.GetInfo(ctx, timeouts.GetInfo)
	done(err)
	if err != nil {
		err = fmt.Errorf("GetInfo on %s failed: %w", e.Path, err)
	}
	return conn, info, err
}

// dial dials a socket. A socket exists shortly before its plugin listens on it, so a refused dial of a new socket is repeated.
func (r *Reconciler) dial(ctx context.Context, e machine.Ask, timeout time.Duration, pausing func()) (_ Conn, err error) {
	ctx, done := r.trace(ctx, "connect")
	defer func() { done(err) }()
	if e.First {
		ctx = context.WithValue(ctx, firstKey{}, true)
	}
	began := r.pace.Now()
	// A zero birth is unknown. One in the future means that the wall clock was set back.
	fresh := e.First && (e.Socket.Birth == 0 || began.Sub(time.Unix(0, e.Socket.Birth)).Abs() < machine.AnswerWindow)
	conn, err := r.cfg.Transport.Dial(ctx, timeout, e.Path, e.Socket)
	for tries := 0; err != nil && fresh && r.cfg.Transport.Refused(err); tries++ {
		// One dial always begins after the window, even if this goroutine is scheduled late.
		fresh = r.pace.Now().Sub(began) < machine.AnswerWindow
		if tries < refusedTries {
			r.pace.Yield()
			conn, err = r.cfg.Transport.Dial(ctx, timeout, e.Path, e.Socket)
			continue
		}
		pausing()
		if err := r.pace.Sleep(ctx, refusedPause); err != nil {
			return nil, err
		}
		conn, err = r.cfg.Transport.Dial(ctx, timeout, e.Path, e.Socket)
	}
	if err != nil {
		return nil, connectError(e.Path, err)
	}
	return conn, nil
}

func connectError(path string, err error) error {
	return fmt.Errorf("cannot connect to %s: %w", path, err)
}

// refuse notifies a plugin of its refusal.
func (r *Reconciler) refuse(ctx context.Context, j *job) {
	defer j.cancel()
	e, _ := j.effect.(machine.Tell)
	conn := r.connOf(e.Ref)
	// Some plugins exit during this call, so the refusal counts as delivered even after an error.
	if err := conn.Notify(j.ctx, r.timeoutsOf(e.Type).Notify, false, e.Reason.Error()); err != nil {
		r.log.Debug("plugin did not acknowledge its refusal", "socket", e.Path, "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.resourcesOf(e.Ref)
	res.cancels[kindOf(e)] = nil
	r.closeConn(res)
	r.step(ctx, machine.Delivered{Ref: e.Ref}, nil)
	r.tidy(e.Ref)
}

func (r *Reconciler) connOf(ref machine.Ref) Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resourcesOf(ref).conn
}

// failure classifies an error of the transport; nil for none.
func (r *Reconciler) failure(err error) *machine.Failure {
	f := classify(err)
	switch {
	case f == nil || f.Kind != machine.Fault || !r.cfg.Transport.Refused(err):
	case errors.Is(err, fs.ErrNotExist):
		f.Kind = machine.Absent
	default:
		f.Kind = machine.Silent
	}
	return f
}

// classify classifies an error of a handler or of Config.Admit; nil for none.
func classify(err error) *machine.Failure {
	if err == nil {
		return nil
	}
	if errors.Is(err, cache.ErrRetry) {
		return &machine.Failure{Err: err, Kind: machine.Patience}
	}
	if _, ok := errors.AsType[*registration.NotServedError](err); ok {
		return &machine.Failure{Err: err, Kind: machine.Unserved}
	}
	if refusal, ok := errors.AsType[*trust.Refusal](err); ok {
		return &machine.Failure{Err: err, Kind: machine.Distrusted, Reason: refusal.Reason}
	}
	return &machine.Failure{Err: err}
}
