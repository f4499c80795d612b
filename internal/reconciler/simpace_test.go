package reconciler_test

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"github.com/patchbay-dev/patchbay/internal/discover/clock"
)

// sim runs everything in one goroutine at a time, as one seed has it: what runs next, how long things take, what chance says. Its time is
// its own, and passes when nothing is to be done.
type sim struct {
	random  *rand.Rand
	elapsed time.Duration // since the beginning
	skew    time.Duration // by which the wall clock was set
	events  timeline
	order   uint64 // counts events, so that those of one time are in order
	// ready are the tasks that can go on, blocked those that wait for time or for the end of a context.
	ready, blocked []*task
	current        *task
	ids            int
	// turn is polled before each step: it says whether it has something to do, and does it.
	turn func() bool
	// stepped is called after each step.
	stepped func()
	steps   int
}

// task is what would be a goroutine: a coroutine, which gives control back when it waits.
type task struct {
	of     *simPace
	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
	ctx    context.Context //nolint:containedctx // that of the wait that is under way
	until  *simEvent
	// dials counts those of the path that it has begun, the first of them then; zero when it is at something else.
	dials   int
	dialled string
	since   time.Duration
}

type simEvent struct {
	of    *simPace // nil: the world's
	at    time.Duration
	order uint64
	do    func()
	index int
}

// timeline is a heap.
type timeline []*simEvent

func (t *timeline) Len() int { return len(*t) }
func (t *timeline) Less(i, j int) bool {
	a, b := (*t)[i], (*t)[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}
func (t *timeline) Swap(i, j int) {
	a, b := (*t)[i], (*t)[j]
	(*t)[i], (*t)[j], a.index, b.index = b, a, j, i
}
func (t *timeline) Push(x any) {
	e, _ := x.(*simEvent)
	e.index = len(*t)
	*t = append(*t, e)
}
func (t *timeline) Pop() any {
	e := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	e.index = -1
	return e
}

var errKilled = errors.New("the process was killed")

func newSim(seed uint64) *sim { return &sim{random: rand.New(rand.NewPCG(seed, 7))} }

// chance says yes once in n times.
func (s *sim) chance(n int) bool { return s.random.IntN(n) == 0 }

var simEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Now returns a time as the machine's clock makes them: with a wall clock that may be set, and one that only goes on and by which times are
// compared.
func (s *sim) Now() time.Time { return clockTime(simEpoch.Add(s.elapsed+s.skew), time.Hour+s.elapsed) }

// clockTime returns a time with a monotonic reading, for which package time has no function: see the comment of time.Time on what it is
// made of.
func clockTime(wall time.Time, monotonic time.Duration) time.Time {
	const hasMonotonic, secondsTo1885, secondsTo1970 = 1 << 63, 59453308800, 62135596800
	t := wall
	parts := (*struct {
		wall uint64
		ext  int64
	})(unsafe.Pointer(&t))
	parts.wall = hasMonotonic | uint64(wall.Unix()+secondsTo1970-secondsTo1885)<<30 | uint64(wall.Nanosecond())
	parts.ext = int64(monotonic)
	return t
}

func (s *sim) at(of *simPace, d time.Duration, do func()) *simEvent {
	s.order++
	e := &simEvent{of: of, at: s.elapsed + max(d, 0), order: s.order, do: do}
	heap.Push(&s.events, e)
	return e
}

func (s *sim) drop(e *simEvent) {
	if e != nil && e.index >= 0 {
		heap.Remove(&s.events, e.index)
	}
}

// sleep blocks the current task until d has passed, or ctx ends. A task of a process that is killed meanwhile does not return from it.
func (s *sim) sleep(ctx context.Context, d time.Duration) error {
	t := s.current
	if t == nil {
		panic("only a task can sleep")
	}
	if t.of.dead {
		panic(errKilled)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.ctx = ctx
	t.until = s.at(t.of, d, func() { s.wake(t) })
	s.blocked = append(s.blocked, t)
	if !t.yield(struct{}{}) || t.of.dead {
		panic(errKilled)
	}
	return context.Cause(ctx)
}

// wake has a task that waits go on.
func (s *sim) wake(t *task) {
	if i := slices.Index(s.blocked, t); i >= 0 {
		s.blocked = slices.Delete(s.blocked, i, i+1)
		s.drop(t.until)
		s.ready = append(s.ready, t)
	}
}

// settle does all that can be done without time passing.
func (s *sim) settle() {
	for s.stepNow() {
	}
}

// pass has time pass.
func (s *sim) pass(d time.Duration) {
	done := false
	s.at(nil, d, func() { done = true })
	for !done {
		s.step()
	}
	s.settle()
}

// step does one thing, for which time may pass. It says whether there was one.
func (s *sim) step() bool {
	if s.stepNow() {
		return true
	}
	if len(s.events) == 0 {
		return false
	}
	s.elapsed = s.events[0].at
	return s.stepNow()
}

// stepNow does one thing that is due, of all that could be next.
func (s *sim) stepNow() bool {
	for i := 0; i < len(s.blocked); {
		if t := s.blocked[i]; t.ctx.Err() != nil {
			s.wake(t)
		} else {
			i++
		}
	}
	due := 0
	if len(s.events) > 0 && s.events[0].at <= s.elapsed {
		due = 1
	}
	n := s.random.IntN(len(s.ready) + due + 1)
	switch {
	case n < len(s.ready):
		s.run(n)
	case n < len(s.ready)+due:
		e, _ := heap.Pop(&s.events).(*simEvent)
		e.do()
	case s.turn != nil && s.turn():
	case len(s.ready)+due == 0:
		return false
	default:
		return true // it was nobody's turn
	}
	if s.steps++; s.steps > 300_000 {
		panic("this leads to work without end")
	}
	if s.stepped != nil {
		s.stepped()
	}
	return true
}

// run has the n-th of the ready tasks go on.
func (s *sim) run(n int) {
	t := s.ready[n]
	s.ready = slices.Delete(s.ready, n, n+1)
	s.current = t
	_, more := t.resume()
	s.current = nil
	if !more {
		t.of.tasks--
		t.of.running = slices.DeleteFunc(t.of.running, func(o *task) bool { return o == t })
	}
}

// simPace is the pace of one process in a simulation.
type simPace struct {
	*sim
	dead    bool
	tasks   int
	running []*task
}

var _ clock.Pace = (*simPace)(nil)

func (p *simPace) AfterFunc(d time.Duration, f func()) (stop func()) {
	if p.dead {
		return func() {}
	}
	e := p.at(p, d, f)
	return func() { p.drop(e) }
}

func (p *simPace) Sleep(ctx context.Context, d time.Duration) error { return p.sleep(ctx, d) }

func (p *simPace) Yield() { _ = p.sleep(context.Background(), 0) }

func (p *simPace) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := p.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

func (p *simPace) Go(f func()) {
	if p.dead {
		return
	}
	t := &task{of: p}
	t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if v := recover(); v != nil && v != errKilled { //nolint:errorlint // it is what was thrown
				panic(v)
			}
		}()
		t.yield = yield
		f()
	})
	p.tasks++
	p.running = append(p.running, t)
	p.ready = append(p.ready, t)
}

// Wait runs everything that is left of the tasks.
func (p *simPace) Wait() {
	for p.tasks > 0 {
		if !p.step() {
			panic(fmt.Sprintf("%d tasks wait forever", p.tasks))
		}
	}
}

func (p *simPace) Chance() float64 { return p.random.Float64() }

func (p *simPace) ID() string {
	p.ids++
	return fmt.Sprintf("id%04d", p.ids)
}

// kill ends all tasks of the process where they are, and everything that is to come of it.
func (p *simPace) kill() {
	p.dead = true
	s := p.sim
	mine := func(t *task) bool { return t.of == p }
	for _, t := range slices.Concat(s.ready, s.blocked) {
		if mine(t) {
			s.current = t // it unwinds
			t.stop()
			s.current = nil
		}
	}
	p.tasks, p.running = 0, nil
	s.ready, s.blocked = slices.DeleteFunc(s.ready, mine), slices.DeleteFunc(s.blocked, mine)
	s.events = slices.DeleteFunc(s.events, func(e *simEvent) bool {
		if e.of == p {
			e.index = -1
			return true
		}
		return false
	})
	for i, e := range s.events {
		e.index = i
	}
	heap.Init(&s.events)
}
