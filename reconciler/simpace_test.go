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
)

// sim runs everything in one goroutine at a time, as one seed has it: what runs next, how long things take, what chance says. Its time is
// its own, and passes when nothing is to be done.
type sim struct {
	random *rand.Rand
	now    time.Time
	events timeline
	order  uint64 // counts events, so that those of one time are in order
	// ready are the tasks that can go on, blocked those that wait for time or for the end of a context.
	ready, blocked []*task
	current        *task
	tasks          int
	ids            int
	// turns are polled before each step: each says whether it has something to do, and does it.
	turns []func() bool
	// stepped is called after each step.
	stepped func()
	steps   int
}

// task is what would be a goroutine: a coroutine, which gives control back when it waits.
type task struct {
	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
	ctx    context.Context //nolint:containedctx // that of the wait that is under way
	until  *simEvent
	killed bool
}

type simEvent struct {
	at    time.Time
	order uint64
	do    func()
	index int
}

// timeline is a heap.
type timeline []*simEvent

func (t timeline) Len() int { return len(t) }
func (t timeline) Less(i, j int) bool {
	return t[i].at.Before(t[j].at) || t[i].at.Equal(t[j].at) && t[i].order < t[j].order
}
func (t timeline) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
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

func newSim(seed uint64) *sim {
	return &sim{random: rand.New(rand.NewPCG(seed, 7)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (s *sim) at(d time.Duration, do func()) *simEvent {
	s.order++
	e := &simEvent{at: s.now.Add(max(d, 0)), order: s.order, do: do}
	heap.Push(&s.events, e)
	return e
}

func (s *sim) drop(e *simEvent) {
	if e != nil && e.index >= 0 {
		heap.Remove(&s.events, e.index)
	}
}

// Now and the other methods that begin with capitals implement [pace.Pace].
func (s *sim) Now() time.Time { return s.now }

func (s *sim) AfterFunc(d time.Duration, f func()) (stop func()) {
	e := s.at(d, f)
	return func() { s.drop(e) }
}

func (s *sim) Sleep(ctx context.Context, d time.Duration) error {
	t := s.current
	if t == nil {
		panic("only a task can sleep")
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	t.ctx = ctx
	t.until = s.at(d, func() { s.wake(t) })
	s.blocked = append(s.blocked, t)
	if !t.yield(struct{}{}) || t.killed {
		return errKilled
	}
	return context.Cause(ctx)
}

// until blocks until a channel is closed, or ctx ends.
func (s *sim) until(ctx context.Context, closed <-chan struct{}) error {
	for {
		select {
		case <-closed:
			return nil
		default:
		}
		if err := s.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// wake has a task that waits go on.
func (s *sim) wake(t *task) {
	if i := slices.Index(s.blocked, t); i >= 0 {
		s.blocked = slices.Delete(s.blocked, i, i+1)
		s.drop(t.until)
		s.ready = append(s.ready, t)
	}
}

func (s *sim) Yield() { _ = s.Sleep(context.Background(), 0) }

func (s *sim) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	e := s.at(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		s.drop(e)
		cancel(context.Canceled)
	}
}

func (s *sim) Go(f func()) {
	t := &task{}
	t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		f()
	})
	s.tasks++
	s.ready = append(s.ready, t)
}

// Wait runs everything that is left of the tasks.
func (s *sim) Wait() {
	for i := 0; s.tasks > 0; i++ {
		if !s.step() {
			panic(fmt.Sprintf("%d tasks wait for ever", s.tasks))
		}
	}
}

func (s *sim) Chance() float64 { return s.random.Float64() }

func (s *sim) ID() string {
	s.ids++
	return fmt.Sprintf("id%04d", s.ids)
}

// settle does all that can be done without time passing.
func (s *sim) settle() {
	for s.stepNow() {
	}
}

// pass has time pass.
func (s *sim) pass(d time.Duration) {
	done := false
	s.at(d, func() { done = true })
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
	s.now = s.events[0].at
	return s.stepNow()
}

// stepNow does one thing that is due, of all that could be next.
func (s *sim) stepNow() bool {
	for _, t := range slices.Clone(s.blocked) {
		if t.ctx.Err() != nil {
			s.wake(t)
		}
	}
	due := len(s.events) > 0 && !s.events[0].at.After(s.now)
	choices := len(s.ready)
	if due {
		choices++
	}
	for range len(s.turns) {
		choices++
	}
	for choices > 0 {
		n := s.random.IntN(choices)
		switch {
		case n < len(s.ready):
			s.run(n)
		case due && n == len(s.ready):
			e, _ := heap.Pop(&s.events).(*simEvent)
			e.do()
		default:
			i := n - len(s.ready)
			if due {
				i--
			}
			if !s.turns[i]() {
				if len(s.ready) == 0 && !due && !s.anyTurn() {
					return false
				}
				continue
			}
		}
		s.steps++
		if s.stepped != nil {
			s.stepped()
		}
		return true
	}
	return false
}

// anyTurn does a turn that is due, if there is one.
func (s *sim) anyTurn() bool {
	for _, turn := range s.turns {
		if turn() {
			return true
		}
	}
	return false
}

// run has the n-th of the ready tasks go on.
func (s *sim) run(n int) {
	t := s.ready[n]
	s.ready = slices.Delete(s.ready, n, n+1)
	s.current = t
	_, more := t.resume()
	s.current = nil
	if !more {
		s.tasks--
	}
}

// kill ends all tasks where they are.
func (s *sim) kill() {
	for _, t := range append(s.ready, s.blocked...) {
		t.killed = true
		s.drop(t.until)
		t.stop()
	}
	s.ready, s.blocked, s.tasks = nil, nil, 0
}
