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
	// slotHold is how long an attempt that waits keeps its slot while few wait without one, minHold how long it does while many wait. The time
	// to hold is half as long for manyWait of them, a third for twice as many, and so on: what says nothing is mostly not alone.
	slotHold, minHold = 25 * time.Millisecond, 2 * time.Millisecond
	manyWait          = 32
	// againEvery is how often one that is tried again goes before those that have just appeared, for all their number.
	againEvery = 4
	// A socket on which its plugin is about to listen is dialled again refusedTries times without a pause, because bind and listen are
	// mostly some microseconds apart, and then with a refusedPause in between; a shorter one takes as long.
	refusedTries = 16
	refusedPause = time.Millisecond
)

// dispatch starts walks while slots are free. mu is held.
func (r *Reconciler) dispatch(ctx context.Context) {
	for r.free > 0 {
		j := r.waiting(ctx)
		if j == nil {
			return
		}
		r.free--
		r.spawn(func() { r.walk(ctx, j) })
	}
}

// waiting takes the job that is the next to get a slot; nil if there is none. What is on disk goes before what is not begun, what has just
// appeared mostly before what is tried again, and nothing when it is over: a plugin must not be told what is then taken back. mu is held.
func (r *Reconciler) waiting(ctx context.Context) (j *job) {
	if r.stopped || ctx.Err() != nil {
		return nil
	}
	queues := [...]*[]*job{&r.saved, &r.queue, &r.again}
	if r.taken++; r.taken%againEvery == 0 {
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

// slot is the place of a walk among those that may run at once.
type slot struct {
	stop func() // of the timer that gives it back

	// Guarded by Reconciler.mu: it was given back; its attempt waits for an answer; it was counted as one that does so without a slot.
	given, asks, counted bool
}

func (r *Reconciler) takeSlot(ctx context.Context, j *job) *slot {
	s := &slot{}
	hold := max(minHold, slotHold/time.Duration(1+r.unanswered.Load()/manyWait))
	if e, ok := j.effect.(machine.Ask); ok && !e.First {
		hold = minHold // it may say as little as it did before
	}
	s.stop = r.pace.AfterFunc(hold, func() { r.giveBack(ctx, s) })
	return s
}

// giveBack gives a slot back, once.
func (r *Reconciler) giveBack(ctx context.Context, s *slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.asks && !s.given {
		s.counted = true
		r.unanswered.Add(1)
	}
	r.leave(s)
	r.dispatch(ctx)
}

// setAsks says whether the attempt that has a slot waits for an answer.
func (r *Reconciler) setAsks(s *slot, asks bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.asks = asks; !asks && s.counted {
		s.counted = false
		r.unanswered.Add(-1)
	}
}

// leave frees a slot, unless it was given back. mu is held.
func (r *Reconciler) leave(s *slot) {
	if !s.given {
		s.given = true
		if r.free++; r.free == r.slots {
			r.gathered()
		}
	}
}

// passOn gives a slot to the job that is the next to get one, unless it was given back.
func (r *Reconciler) passOn(ctx context.Context, s *slot) (next *job) {
	s.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.given {
		return nil
	}
	if next = r.waiting(ctx); next == nil {
		r.leave(s)
	}
	s.given = true
	return next
}

func (r *Reconciler) walk(ctx context.Context, j *job) {
	for j != nil {
		s := r.takeSlot(ctx, j)
		if e, ok := j.effect.(machine.Ask); ok {
			r.ask(ctx, j, e, s)
		}
		r.work(ctx, j, s)
		j = r.passOn(ctx, s)
	}
}

func (r *Reconciler) ask(ctx context.Context, j *job, e machine.Ask, s *slot) {
	r.setAsks(s, true)
	conn, info, err := r.interview(j.ctx, e, func() { r.giveBack(ctx, s) })
	r.setAsks(s, false)
	answer := machine.Answered{Ref: e.Ref, Path: e.Path, Info: info, Failure: r.failure(err)}
	if conn != nil {
		answer.Peer, answer.Account = conn.Peer(), conn.Account()
	}
	r.done(ctx, j, answer, conn)
}

// done gives the machine the result of a job. If that leads to a call, it is the next thing that the job is about.
func (r *Reconciler) done(ctx context.Context, j *job, result machine.Input, conn Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := j.ref
	res := r.of(ref)
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

// interview dials a socket and asks who is there. With an error there may be a connection and what was announced on it. A socket exists a
// moment before its plugin listens on it: as long as it is fresh, a refused dial is repeated. waits is called before it waits for that.
func (r *Reconciler) interview(ctx context.Context, e machine.Ask, waits func()) (Conn, plugin.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, plugin.Info{}, err // it was abandoned while it waited for a slot
	}
	timeouts := r.timeouts(e.Type)
	conn, err := r.reach(ctx, e, timeouts.Dial, waits)
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

// reach dials a socket, again and again for a moment if that is fresh.
func (r *Reconciler) reach(ctx context.Context, e machine.Ask, timeout time.Duration, waits func()) (_ Conn, err error) {
	ctx, done := r.trace(ctx, "connect")
	defer func() { done(err) }()
	if e.First {
		ctx = context.WithValue(ctx, firstKey{}, true)
	}
	began := r.pace.Now()
	// The age is not known if it is zero. A birth in the future is from before a step of the wall clock.
	fresh := e.First && (e.Socket.Birth == 0 || began.Sub(time.Unix(0, e.Socket.Birth)).Abs() < machine.AnswerWindow)
	conn, err := r.cfg.Transport.Dial(ctx, timeout, e.Path, e.Socket)
	for tries := 0; err != nil && fresh && r.cfg.Transport.Refused(err); tries++ {
		// The last dial begins after the window, however late a busy machine has this goroutine go on.
		fresh = r.pace.Now().Sub(began) < machine.AnswerWindow
		if tries < refusedTries {
			r.pace.Yield()
			conn, err = r.cfg.Transport.Dial(ctx, timeout, e.Path, e.Socket)
			continue
		}
		waits()
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

func (r *Reconciler) refuse(ctx context.Context, j *job) {
	defer j.cancel()
	e, _ := j.effect.(machine.Tell)
	conn := r.connOf(e.Ref)
	// Some plugins exit inside this call, so an error says little: the refusal counts as delivered.
	if err := conn.Notify(j.ctx, r.timeouts(e.Type).Notify, false, e.Reason.Error()); err != nil {
		r.log.Debug("plugin did not acknowledge its refusal", "socket", e.Path, "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.of(e.Ref)
	res.cancels[kindOf(e)] = nil
	r.closeConn(res)
	r.step(ctx, machine.Delivered{Ref: e.Ref}, nil)
	r.tidy(e.Ref)
}

func (r *Reconciler) connOf(ref machine.Ref) Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(ref).conn
}

// failure says what follows from an error of the transport.
func (r *Reconciler) failure(err error) *machine.Failure {
	f := judge(err)
	switch {
	case f == nil || f.Kind != machine.Fault || !r.cfg.Transport.Refused(err):
	case errors.Is(err, fs.ErrNotExist):
		f.Kind = machine.Absent
	default:
		f.Kind = machine.Silent
	}
	return f
}

// judge says what follows from an error of a handler or of whoever admits.
func judge(err error) *machine.Failure {
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
