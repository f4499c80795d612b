// Package simulate runs what has goroutines and time in one goroutine, as one seed has it, for tests: what runs next, how long things take
// and what chance says. It also puts faults into the product and sees that a simulation finds them. It knows nothing of what it runs.
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

// Sim is one run. Its time is its own, and passes when nothing is to be done. It is used by one goroutine.
type Sim struct {
	*rand.Rand
	elapsed time.Duration
	events  timeline
	order   uint64
	// ready are the tasks that can go on, blocked those that wait for time or for the end of a context.
	ready, blocked []*task
	current        *task
	steps          int
}

// task is what would be a goroutine: a coroutine, which gives control back when it waits.
type task struct {
	resume func() (struct{}, bool)
	yield  func(struct{}) bool
	ctx    context.Context //nolint:containedctx // that of the wait that is under way
	until  *event
}

type event struct {
	at    time.Duration
	order uint64
	do    func()
	index int
}

// New returns a run in which nothing is to be done yet.
func New(seed uint64) *Sim { return &Sim{Rand: rand.New(rand.NewPCG(seed, 7))} }

// OneIn says yes once in n times.
func (s *Sim) OneIn(n int) bool { return s.IntN(n) == 0 }

// Between returns a time from least to most.
func (s *Sim) Between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.Int64N(int64(most-least)+1))
}

// Now implements the pace of what is run, as all that follows down to Chance does.
func (s *Sim) Now() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(s.elapsed) }

// AfterFunc calls f when d has passed, unless stop is called before.
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

// Chance is a number from 0 to 1 that is not 1.
func (s *Sim) Chance() float64 { return s.Float64() }

// Sleep blocks the task that calls it until d has passed, or ctx ends, whose error it returns then.
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

// Pass has time pass, in which what is to be done is done.
func (s *Sim) Pass(d time.Duration) {
	done := false
	s.at(d, func() { done = true })
	for !done {
		s.step()
	}
	for s.stepNow() {
	}
}

// Tasks is how many tasks have not ended.
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

// step does one thing, for which time may pass.
func (s *Sim) step() {
	if !s.stepNow() && len(s.events) > 0 {
		s.elapsed = s.events[0].at
		s.stepNow()
	}
}

// stepNow does one thing that is due, of all that could be next. It says whether there was one.
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
		panic(fmt.Sprintf("this leads to work without end, with %d tasks", s.Tasks()))
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

// timeline is a heap.
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
