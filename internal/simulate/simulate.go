// Package simulate runs concurrent code in one goroutine for tests, so that a seed determines the order in which tasks run, how long waits
// take and every random choice. It also builds mutants of the product, to check that the simulations detect faults.
package simulate

import (
	"container/heap"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// Sim is one simulated run. Its clock advances only when no task is ready. It is not safe for concurrent use.
type Sim struct {
	*rand.Rand
	elapsed time.Duration
	events  timeline
	order   uint64
	// ready are the tasks that can run; blocked are the tasks in [Sim.Sleep].
	ready, blocked []*task
	current        *task
	steps          int
}

// task is a simulated goroutine: a coroutine that yields when it waits.
type task struct {
	resume func() (struct{}, bool)
	yield  func(struct{}) bool
	ctx    context.Context //nolint:containedctx // of the current Sleep
	until  *event
}

type event struct {
	at    time.Duration
	order uint64
	do    func()
	index int
}

// New returns a run without tasks.
func New(seed uint64) *Sim { return &Sim{Rand: rand.New(rand.NewPCG(seed, 7))} }

// OneIn returns true with a probability of 1/n.
func (s *Sim) OneIn(n int) bool { return s.IntN(n) == 0 }

// Between returns a random duration from least to most.
func (s *Sim) Between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.Int64N(int64(most-least)+1))
}

// Now returns the simulated time.
func (s *Sim) Now() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(s.elapsed) }

// AfterFunc calls f after d, unless stop is called before.
func (s *Sim) AfterFunc(d time.Duration, f func()) (stop func()) {
	e := s.at(d, f)
	return func() { s.drop(e) }
}

// Go runs f as a task.
func (s *Sim) Go(f func()) {
	t := &task{}
	t.resume, _ = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		f()
	})
	s.ready = append(s.ready, t)
}

// Chance returns a random number in [0, 1).
func (s *Sim) Chance() float64 { return s.Float64() }

// Sleep blocks the calling task until d has passed or ctx is done. It returns the cause of ctx, or nil.
func (s *Sim) Sleep(ctx context.Context, d time.Duration) error {
	t := s.current
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.ctx = ctx
	t.until = s.at(d, func() { s.wake(t) })
	s.blocked = append(s.blocked, t)
	t.yield(struct{}{})
	return context.Cause(ctx)
}

// Pass advances the clock by d and runs everything that is due until then.
func (s *Sim) Pass(d time.Duration) {
	done := false
	s.at(d, func() { done = true })
	for !done {
		s.step()
	}
	for s.stepNow() {
	}
}

// Tasks returns the number of tasks that have not ended.
func (s *Sim) Tasks() int { return len(s.ready) + len(s.blocked) }

func (s *Sim) at(d time.Duration, do func()) *event {
	s.order++
	e := &event{at: s.elapsed + max(d, 0), order: s.order, do: do}
	heap.Push(&s.events, e)
	return e
}

func (s *Sim) drop(e *event) {
	if e.index >= 0 {
		heap.Remove(&s.events, e.index)
	}
}

func (s *Sim) wake(t *task) {
	if i := slices.Index(s.blocked, t); i >= 0 {
		s.blocked = slices.Delete(s.blocked, i, i+1)
		s.drop(t.until)
		s.ready = append(s.ready, t)
	}
}

// step runs one task or event. If nothing is due, it first advances the clock to the next event.
func (s *Sim) step() {
	if !s.stepNow() && len(s.events) > 0 {
		s.elapsed = s.events[0].at
		s.stepNow()
	}
}

// stepNow runs one task or event that is due, chosen at random. It reports whether there was one.
func (s *Sim) stepNow() bool {
	for _, t := range slices.Clone(s.blocked) {
		if t.ctx.Err() != nil {
			s.wake(t)
		}
	}
	due := 0
	if len(s.events) > 0 && s.events[0].at <= s.elapsed {
		due = 1
	}
	if len(s.ready)+due == 0 {
		return false
	}
	if s.steps++; s.steps > 100_000 {
		panic(fmt.Sprintf("the simulation does not end: more than 100,000 steps, with %d tasks", s.Tasks()))
	}
	if n := s.IntN(len(s.ready) + due); n < len(s.ready) {
		t := s.ready[n]
		s.ready = slices.Delete(s.ready, n, n+1)
		s.current = t
		t.resume()
		s.current = nil
		return true
	}
	if e, is := heap.Pop(&s.events).(*event); is {
		e.do()
	}
	return true
}

// timeline is a heap of events, the next first.
type timeline []*event

func (t *timeline) Len() int { return len(*t) }
func (t *timeline) Less(i, j int) bool {
	a, b := (*t)[i], (*t)[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}
func (t *timeline) Swap(i, j int) {
	a, b := (*t)[i], (*t)[j]
	(*t)[i], (*t)[j], a.index, b.index = b, a, j, i
}

// Push implements [heap.Interface].
func (t *timeline) Push(x any) {
	if e, is := x.(*event); is {
		e.index = len(*t)
		*t = append(*t, e)
	}
}

// Pop implements [heap.Interface].
func (t *timeline) Pop() any {
	e := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	e.index = -1
	return e
}
