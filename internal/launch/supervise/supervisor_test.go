package supervise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

var errCrash = errors.New("crash")

// plugin is a Runner. Each life takes the next of ends, the last of which is for all that follow; it records when lives began and ended.
type plugin struct {
	ends   []end
	linger time.Duration // after the end of a life's context

	mu     sync.Mutex
	lives  int
	alive  int
	begins []time.Time
}

// end is how a life ends: after so long, or not by itself if that is zero.
type end struct {
	after time.Duration
	err   error
	panic bool
}

func (p *plugin) Run(ctx context.Context) error {
	p.mu.Lock()
	how := p.ends[min(p.lives, len(p.ends)-1)]
	p.lives++
	p.alive++
	if p.alive > 1 {
		panic("two lives at once")
	}
	p.begins = append(p.begins, time.Now())
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.alive--
		p.mu.Unlock()
	}()
	var timeout <-chan time.Time
	if how.after > 0 {
		timeout = time.After(how.after)
	}
	select {
	case <-ctx.Done():
		time.Sleep(p.linger)
		return ctx.Err()
	case <-timeout:
	}
	if how.panic {
		panic("at the plugin")
	}
	return how.err
}

func (p *plugin) count() (lives, alive int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lives, p.alive
}

// supervised is a Supervisor whose Run runs.
type supervised struct {
	*Supervisor
	*plugin
	states []State
	cancel func()
	done   chan error
}

func supervise(t *testing.T, policy Policy, p *plugin) *supervised {
	ctx, cancel := context.WithCancel(t.Context())
	s := &supervised{plugin: p, cancel: cancel, done: make(chan error, 1)}
	s.Supervisor = New(policy, p, func(status Status) { s.states = append(s.states, status.State) })
	go func() { s.done <- s.Supervisor.Run(ctx) }()
	t.Cleanup(cancel)
	synctest.Wait()
	return s
}

// expect says what must hold when nothing happens any more at this time.
func (s *supervised) expect(t *testing.T, state State, lives, alive int) {
	t.Helper()
	synctest.Wait()
	gotLives, gotAlive := s.count()
	if got := s.Status().State; got != state || gotLives != lives || gotAlive != alive {
		t.Errorf("%s after %d lives with %d alive, want %s after %d with %d", got, gotLives, gotAlive, state, lives, alive)
	}
}

func (s *supervised) end(t *testing.T) error {
	t.Helper()
	s.cancel()
	return <-s.done
}

const second = time.Second

func TestPolicies(t *testing.T) {
	for _, test := range []struct {
		restart Restart
		err     error
		over    bool
	}{
		{Always, nil, false},
		{Always, errCrash, false},
		{OnFailure, nil, true},
		{OnFailure, errCrash, false},
		{Never, nil, true},
		{Never, errCrash, true},
	} {
		t.Run(fmt.Sprint(test.restart, test.err), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := supervise(t, Policy{Restart: test.restart}, &plugin{ends: []end{{after: second, err: test.err}, {}}})
				time.Sleep(second)
				if test.over {
					if err := <-s.done; !errors.Is(err, test.err) {
						t.Errorf("Run: %v", err)
					}
					s.expect(t, Stopped, 1, 0)
				} else {
					s.expect(t, Backoff, 1, 0)
					if status := s.Status(); !errors.Is(status.LastError, test.err) || status.Restarts != 1 || status.NextStart.Before(time.Now().Add(second)) {
						t.Errorf("%+v", status)
					}
					time.Sleep(time.Until(s.Status().NextStart))
					s.expect(t, Running, 2, 1)
					if err := s.end(t); err != nil {
						t.Errorf("Run: %v", err)
					}
					s.expect(t, Stopped, 2, 0)
				}
				if status := s.Status(); !errors.Is(status.LastError, test.err) || !status.NextStart.IsZero() {
					t.Errorf("%+v", status)
				}
			})
		})
	}
}

func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := supervise(t, Policy{Restart: OnFailure}, &plugin{ends: []end{{after: second, panic: true}, {}}})
		time.Sleep(second)
		s.expect(t, Backoff, 1, 0)
		if err := s.Status().LastError; err == nil || !strings.Contains(err.Error(), "panicked: at the plugin") {
			t.Error(err)
		}
	})
}

func TestFailed(t *testing.T) {
	for _, err := range []error{errCrash, nil} {
		synctest.Test(t, func(t *testing.T) {
			s := supervise(t, Policy{Limit: 3, MaxBackoff: second}, &plugin{ends: []end{{after: second, err: err}}})
			time.Sleep(time.Minute)
			s.expect(t, Failed, 4, 0)
			want := err
			if err == nil {
				want = errClean
			}
			status := s.Status()
			if !errors.Is(status.LastError, want) || !strings.Contains(status.LastError.Error(), "given up after 3 restarts within 10m0s: ") || status.Restarts != 3 {
				t.Errorf("%+v", status)
			}
			time.Sleep(time.Hour)
			s.expect(t, Failed, 4, 0)
			for i := range 2 {
				s.Start()
				s.expect(t, Running, 4*i+5, 1)
				if status := s.Status(); status.Restarts != 0 {
					t.Errorf("%+v", status)
				}
				time.Sleep(time.Minute)
				s.expect(t, Failed, 4*i+8, 0)
			}
			if err := s.end(t); err != nil {
				t.Error(err)
			}
			s.expect(t, Stopped, 12, 0)
			states := slices.Compact(s.states)
			cycle := []State{Running, Backoff, Running, Backoff, Running, Backoff, Running, Failed}
			if want := slices.Concat(cycle, cycle, cycle, []State{Stopped}); !slices.Equal(states, want) {
				t.Errorf("states %v", states)
			}
		})
	}
}

// TestBackoff: pauses grow, stay within their bounds, differ, and begin anew after a healthy life.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := slices.Repeat([]end{{after: second, err: errCrash}}, 8)
		ends = append(ends, end{after: time.Minute, err: errCrash}, end{after: second, err: errCrash}, end{})
		s := supervise(t, Policy{Limit: -1}, &plugin{ends: ends})
		time.Sleep(time.Hour)
		s.expect(t, Running, 11, 1)
		for i, bound := range []int{2, 4, 8, 16, 32, 60, 60, 60, 2, 4} {
			bound := time.Duration(bound) * second
			lived := ends[i].after
			pause := s.begins[i+1].Sub(s.begins[i]) - lived
			if pause < bound/2 || pause > bound {
				t.Errorf("pause %d is %v, want %v at most", i, pause, bound)
			}
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			MinBackoff: time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "min")), MaxBackoff: time.Duration(rapid.Int64Range(0, 1<<62).Draw(t, "max")),
		}.withDefaults()
		n := rapid.IntRange(1, 1000).Draw(t, "n")
		pause := p.pause(n)
		if pause < p.MinBackoff || pause > p.MaxBackoff {
			t.Fatalf("%v after %d with %+v", pause, n, p)
		}
	})
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[Policy{}.withDefaults().pause(20)] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d pauses of 100 differ", len(seen))
	}
}

// TestWindow: however long lives last, there are never more restarts within the window than the limit, and the plugin is failed
// only when one more would be too many.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, func(t *testing.T) {
			lengths := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{second, 5 * second, time.Minute}), 1, 40).Draw(rt, "lives")
			limit := rapid.IntRange(1, 5).Draw(rt, "limit")
			p := &plugin{}
			for _, length := range lengths {
				p.ends = append(p.ends, end{after: length, err: errCrash})
			}
			p.ends = append(p.ends, end{})
			s := supervise(t, Policy{Limit: limit, Window: time.Minute, MaxBackoff: second}, p)
			time.Sleep(time.Hour)
			synctest.Wait()

			var deaths []time.Time
			for i := range p.lives {
				if p.ends[i].after > 0 {
					deaths = append(deaths, p.begins[i].Add(p.ends[i].after))
				}
			}
			within := func(i int) int { // deaths within the window before the one with index i
				n := 0
				for _, d := range deaths[:i] {
					if deaths[i].Sub(d) < time.Minute {
						n++
					}
				}
				return n
			}
			failed := s.Status().State == Failed
			for i := range deaths {
				last := i == len(deaths)-1
				if tooMany := within(i) >= limit; tooMany != (last && failed) {
					rt.Fatalf("death %d of %d, %d others within the window, limit %d, %v", i, len(deaths), within(i), limit, s.Status().State)
				}
			}
			if !failed && p.lives != len(lengths)+1 {
				rt.Fatalf("%v after %d lives of %d", s.Status().State, p.lives, len(lengths)+1)
			}
			s.end(t)
		})
	})
}

// TestStart: what runs is left alone, also while it ends, and what does not is started anew at once.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := supervise(t, Policy{Restart: OnFailure}, &plugin{ends: []end{{after: 2 * second, err: errCrash}, {}}, linger: 3 * second})
		s.Start()
		s.expect(t, Running, 1, 1)
		time.Sleep(2 * second)
		s.expect(t, Backoff, 1, 0)
		s.Start()
		s.Start() // and once more
		s.expect(t, Running, 2, 1)
		if status := s.Status(); status.Restarts != 0 || !errors.Is(status.LastError, errCrash) || !status.Since.Equal(time.Now()) {
			t.Errorf("%+v", status)
		}
		time.Sleep(time.Hour)
		s.expect(t, Running, 2, 1)
		s.cancel()
		time.Sleep(second)
		s.Start() // it is still ending
		if err := s.end(t); err != nil {
			t.Error(err)
		}
		s.expect(t, Stopped, 2, 0)
	})
}

// TestContextEnds: Run returns in every state, with nil, after the life.
func TestContextEnds(t *testing.T) {
	for state, ends := range map[State]end{Running: {}, Backoff: {after: second, err: errCrash}, Failed: {after: 1, err: errCrash}} {
		t.Run(string(state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := Policy{Limit: 1, MinBackoff: 10 * second}
				if state == Failed {
					policy.MinBackoff, policy.MaxBackoff = 1, 1
				}
				s := supervise(t, policy, &plugin{ends: []end{ends}, linger: second})
				time.Sleep(second)
				synctest.Wait()
				if got := s.Status().State; got != state {
					t.Fatalf("%s instead of %s", got, state)
				}
				if err := s.end(t); err != nil {
					t.Error(err)
				}
				lives, _ := s.count()
				s.expect(t, Stopped, lives, 0)
			})
		})
	}
}

func TestUnresponsive(t *testing.T) {
	for _, restart := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := supervise(t, Policy{Restart: OnFailure, RestartUnresponsive: restart}, &plugin{ends: []end{{}}})
			s.Health(HealthStatus{State: NotServing})
			s.expect(t, Running, 1, 1)
			s.Health(HealthStatus{State: Unresponsive, Err: errCrash})
			if !restart {
				s.expect(t, Running, 1, 1)
				return
			}
			s.Health(HealthStatus{State: Unresponsive})
			s.expect(t, Backoff, 1, 0)
			if err := s.Status().LastError; !errors.Is(err, errCrash) {
				t.Error(err)
			}
			s.Health(HealthStatus{State: Unresponsive})
			time.Sleep(time.Minute)
			s.expect(t, Running, 2, 1)
		})
	}
}

// TestAnyOrder: whenever it is started, there is one life at a time, and in the end there is one or the plugin has failed.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, func(t *testing.T) {
			p := &plugin{linger: rapid.SampledFrom([]time.Duration{0, second}).Draw(rt, "linger")}
			for range rapid.IntRange(0, 20).Draw(rt, "ends") {
				after := rapid.SampledFrom([]time.Duration{0, 1, second, time.Minute}).Draw(rt, "after")
				p.ends = append(p.ends, end{after: after, err: errCrash})
			}
			p.ends = append(p.ends, end{})
			s := supervise(t, Policy{Limit: 2, MaxBackoff: 2 * second}, p)
			for range rapid.IntRange(1, 30).Draw(rt, "steps") {
				s.Start()
				time.Sleep(rapid.SampledFrom([]time.Duration{0, 1, second, 5 * second, time.Hour}).Draw(rt, "pause"))
				status := s.Status()
				if status.State == Backoff && status.NextStart.IsZero() || status.State != Backoff && !status.NextStart.IsZero() {
					rt.Fatalf("%+v", status)
				}
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			state := s.Status().State
			_, alive := p.count()
			if ok := state == Running && alive == 1 || state == Failed && alive == 0; !ok {
				rt.Fatalf("%s with %d alive", state, alive)
			}
			if err := s.end(t); err != nil {
				rt.Fatal(err)
			}
		})
	})
}

// bubble runs f in a bubble of its own and hands a failure of the property on to it.
func bubble(t *testing.T, f func(t *testing.T)) {
	var failure any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failure = recover() }()
		f(t)
	})
	if failure != nil {
		panic(failure)
	}
}
