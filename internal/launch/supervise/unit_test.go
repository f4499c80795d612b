package supervise_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/plugin"
)

var errCrash = errors.New("crash")

// fakeProgram starts the processes of a Unit. Each life takes the next of ends; the last one is for all later lives. It counts the lives
// and records when they began.
type fakeProgram struct {
	ends   []end
	linger time.Duration // after a request to stop

	mu     sync.Mutex
	lives  int
	alive  int
	begins []time.Time
}

// end is how a life ends: after a time, or only by a request if that is zero.
type end struct {
	after time.Duration
	err   error
	panic bool
	exit  bool // Launch calls runtime.Goexit
	never bool // Launch returns err
}

// life is a process.
type life struct {
	of   *fakeProgram
	how  end
	told chan struct{}
	over chan struct{}
	once sync.Once
}

func (p *fakeProgram) Launch(context.Context, machine.Ref) (supervise.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	how := p.ends[min(p.lives, len(p.ends)-1)]
	p.lives++
	p.begins = append(p.begins, time.Now())
	if how.panic {
		panic("at the plugin")
	}
	if how.exit {
		runtime.Goexit()
	}
	if how.never {
		return nil, how.err
	}
	p.alive++
	if p.alive > 1 {
		panic("two lives at once")
	}
	return &life{of: p, how: how, told: make(chan struct{}), over: make(chan struct{})}, nil
}

func (*life) AwaitReady(context.Context, func(error)) error { panic("it does not serve") }

func (*life) FollowHealth(context.Context, func(machine.HealthFound)) { panic("it does not serve") }

func (l *life) About() machine.Process { return machine.Process{PID: 1} }

func (l *life) Wait(context.Context) error {
	var timeout <-chan time.Time
	if l.how.after > 0 {
		timeout = time.After(l.how.after)
	}
	err := l.how.err
	select {
	case <-l.told:
		time.Sleep(l.of.linger)
		err = nil
	case <-timeout:
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.of.alive--
	close(l.over)
	return err
}

func (l *life) Terminate(context.Context) {
	l.once.Do(func() { close(l.told) })
	<-l.over
}

func (p *fakeProgram) count() (lives, alive int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lives, p.alive
}

// supervised is a Unit that was started.
type supervised struct {
	*supervise.Unit
	*fakeProgram
	work  sync.WaitGroup
	mu    sync.Mutex
	kinds []plugin.EventKind
}

func start(t *testing.T, policy plugin.RestartPolicy, p *fakeProgram) *supervised {
	s := &supervised{fakeProgram: p}
	policy.Backoff.Min = cmp.Or(policy.Backoff.Min, second)
	s.Unit = supervise.New(s, supervise.Real{WaitGroup: &s.work})
	s.Configure(p, machine.Description{Restart: policy}, false, func(error) {})
	s.again()
	t.Cleanup(func() { s.end() })
	return s
}

func (s *supervised) Observe(e plugin.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = append(s.kinds, e.Kind)
}

func (*supervised) Needed() bool { return true }

// again starts the plugin and does not wait.
func (s *supervised) again() {
	s.Tell(machine.Start{})
	synctest.Wait()
}

// expect checks the status when all goroutines are blocked.
func (s *supervised) expect(t *testing.T, state plugin.State, lives, alive int) {
	t.Helper()
	synctest.Wait()
	gotLives, gotAlive := s.count()
	if got := s.state(); got != state || gotLives != lives || gotAlive != alive {
		t.Errorf("%s after %d lives with %d alive, want %s after %d with %d", got, gotLives, gotAlive, state, lives, alive)
	}
}

// state returns the state of the plugin.
func (s *supervised) state() plugin.State {
	if state := s.Status().State; state != plugin.StateStarting {
		return state
	}
	return plugin.StateRunning
}

func (s *supervised) end() {
	s.Tell(machine.Close{})
	s.work.Wait()
}

const second = time.Second

func TestPolicies(t *testing.T) {
	for _, test := range []struct {
		restart plugin.Restart
		err     error
		over    bool
	}{
		{plugin.RestartAlways, nil, false},
		{plugin.RestartAlways, errCrash, false},
		{plugin.RestartOnFailure, nil, true},
		{plugin.RestartOnFailure, errCrash, false},
		{plugin.RestartNever, nil, true},
		{plugin.RestartNever, errCrash, true},
	} {
		t.Run(fmt.Sprint(test.restart, test.err), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, plugin.RestartPolicy{Policy: test.restart}, &fakeProgram{ends: []end{{after: second, err: test.err}, {}}})
				time.Sleep(second)
				if test.over {
					s.expect(t, plugin.StateStopped, 1, 0)
				} else {
					s.expect(t, plugin.StateBackoff, 1, 0)
					if status := s.Status(); status.Restarts != 1 || status.NextStart.Before(time.Now().Add(second)) {
						t.Errorf("%+v", status)
					}
					time.Sleep(time.Until(s.Status().NextStart))
					s.expect(t, plugin.StateRunning, 2, 1)
					s.end()
					s.expect(t, plugin.StateStopped, 2, 0)
				}
				if status := s.Status(); (status.LastError != "") != (test.err != nil) || !status.NextStart.IsZero() {
					t.Errorf("%+v", status)
				}
			})
		})
	}
}

func TestPanic(t *testing.T) {
	for want, how := range map[string]end{"panicked: at the plugin": {panic: true}, "ended its goroutine": {exit: true}} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, plugin.RestartPolicy{Policy: plugin.RestartOnFailure}, &fakeProgram{ends: []end{how, {}}})
			s.expect(t, plugin.StateBackoff, 1, 0)
			if err := s.Status().LastError; !strings.Contains(err, want) {
				t.Error(err)
			}
		})
	}
}

// TestRepeatedFailure: a start that fails with the same error as the previous one is not reported, unless a process ran in between.
func TestRepeatedFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		absent := end{err: errors.New("no such file"), never: true}
		s := start(t, plugin.RestartPolicy{Policy: plugin.RestartAlways, Limit: -1}, &fakeProgram{ends: []end{absent, absent, absent, {after: second / 2, err: errCrash}, absent, absent, {}}})
		time.Sleep(time.Hour)
		s.expect(t, plugin.StateRunning, 7, 1)
		want := append(slices.Repeat([]plugin.EventKind{plugin.EventBackoff}, 3), plugin.EventReady, plugin.EventRecovered)
		if !slices.Equal(s.kinds, want) {
			t.Errorf("events %v, want %v", s.kinds, want)
		}
	})
}

func TestFailed(t *testing.T) {
	for _, err := range []error{errCrash, nil} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, plugin.RestartPolicy{Policy: plugin.RestartAlways, Limit: 3, Backoff: plugin.Backoff{Max: second}}, &fakeProgram{ends: []end{{after: second / 2, err: err}}})
			time.Sleep(time.Minute)
			s.expect(t, plugin.StateFailed, 4, 0)
			want := errCrash.Error()
			if err == nil {
				want = "it ended by itself, without an error"
			}
			if status := s.Status(); status.LastError != "given up after 3 restarts within 10m0s: "+want || status.Restarts != 3 {
				t.Errorf("%+v", status)
			}
			time.Sleep(time.Hour)
			s.expect(t, plugin.StateFailed, 4, 0)
			for i := range 2 {
				s.again()
				s.expect(t, plugin.StateRunning, 4*i+5, 1)
				if status := s.Status(); status.Restarts != 0 {
					t.Errorf("%+v", status)
				}
				time.Sleep(time.Minute)
				s.expect(t, plugin.StateFailed, 4*i+8, 0)
			}
			s.end()
			s.expect(t, plugin.StateStopped, 12, 0)
			cycle := append(slices.Repeat([]plugin.EventKind{plugin.EventBackoff}, 3), plugin.EventFailed)
			if want := slices.Repeat(cycle, 3); !slices.Equal(s.kinds, want) {
				t.Errorf("events %v", s.kinds)
			}
		})
	}
}

// TestBackoff: pauses grow, stay within their bounds, and are reset after a healthy life.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := slices.Repeat([]end{{after: second, err: errCrash}}, 8)
		ends = append(ends, end{after: time.Minute, err: errCrash}, end{after: second, err: errCrash}, end{})
		s := start(t, plugin.RestartPolicy{Policy: plugin.RestartAlways, Limit: -1}, &fakeProgram{ends: ends})
		time.Sleep(time.Hour)
		s.expect(t, plugin.StateRunning, 11, 1)
		for i, bound := range []int{2, 4, 8, 16, 32, 60, 60, 60, 2, 4} {
			bound := time.Duration(bound) * second
			lived := ends[i].after
			pause := s.begins[i+1].Sub(s.begins[i]) - lived
			if pause < bound/2 || pause > bound {
				t.Errorf("pause %d is %v, want %v at most", i, pause, bound)
			}
		}
	})
}

// TestWindow: however long lives last, there are never more restarts within the window than the limit, and the plugin fails only when
// another restart would exceed it.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, func(t *testing.T) {
			lengths := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{second, 5 * second, time.Minute}), 1, 40).Draw(rt, "lives")
			limit := rapid.IntRange(1, 5).Draw(rt, "limit")
			p := &fakeProgram{}
			for _, length := range lengths {
				p.ends = append(p.ends, end{after: length, err: errCrash})
			}
			p.ends = append(p.ends, end{})
			s := start(t, plugin.RestartPolicy{Policy: plugin.RestartAlways, Limit: limit, Window: time.Minute, Backoff: plugin.Backoff{Max: second}}, p)
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
			failed := s.Status().State == plugin.StateFailed
			for i := range deaths {
				last := i == len(deaths)-1
				if tooMany := within(i) >= limit; tooMany != (last && failed) {
					rt.Fatalf("death %d of %d, %d others within the window, limit %d, %v", i, len(deaths), within(i), limit, s.Status().State)
				}
			}
			if !failed && p.lives != len(lengths)+1 {
				rt.Fatalf("%v after %d lives of %d", s.Status().State, p.lives, len(lengths)+1)
			}
			s.end()
		})
	})
}

// TestStart: a running plugin keeps running, another one is started immediately, and one that is still ending is started after its end.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, plugin.RestartPolicy{Policy: plugin.RestartOnFailure}, &fakeProgram{ends: []end{{after: 2 * second, err: errCrash}, {}}, linger: 3 * second})
		s.again()
		s.expect(t, plugin.StateRunning, 1, 1)
		time.Sleep(2 * second)
		s.expect(t, plugin.StateBackoff, 1, 0)
		s.again()
		s.again() // and once more
		s.expect(t, plugin.StateRunning, 2, 1)
		if status := s.Status(); status.Restarts != 0 || status.LastError != errCrash.Error() || !status.Since.Equal(time.Now()) {
			t.Errorf("%+v", status)
		}
		time.Sleep(time.Hour)
		s.expect(t, plugin.StateRunning, 2, 1)
		stopped := make(chan error, 1)
		s.Stop(func(err error) { stopped <- err })
		time.Sleep(second)
		s.again() // it is still ending
		s.expect(t, plugin.StateRunning, 2, 1)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		s.expect(t, plugin.StateRunning, 3, 1)
	})
}

// TestClose: a Unit can be closed in every state, and ends after the process.
func TestClose(t *testing.T) {
	for state, how := range map[plugin.State]end{
		plugin.StateRunning: {}, plugin.StateBackoff: {after: second, err: errCrash}, plugin.StateFailed: {after: 1, err: errCrash},
	} {
		t.Run(string(state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := plugin.RestartPolicy{Policy: plugin.RestartAlways, Limit: 1, Backoff: plugin.Backoff{Min: 10 * second}}
				if state == plugin.StateFailed {
					policy.Backoff = plugin.Backoff{Min: 1, Max: 1}
				}
				s := start(t, policy, &fakeProgram{ends: []end{how}, linger: second})
				time.Sleep(second)
				synctest.Wait()
				if got := s.state(); got != state {
					t.Fatalf("%s instead of %s", got, state)
				}
				s.end()
				lives, _ := s.count()
				s.expect(t, plugin.StateStopped, lives, 0)
			})
		})
	}
}

// TestNeededAgain: a plugin that is needed again is started immediately if it was healthy, and otherwise after a pause.
func TestNeededAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProgram{ends: []end{{after: time.Minute, err: errCrash}, {after: second, err: errCrash}, {}}}
		s := &supervised{fakeProgram: p}
		s.Unit = supervise.New(s, supervise.Real{WaitGroup: &s.work})
		s.Configure(p, machine.Description{Restart: plugin.RestartPolicy{Policy: machine.OnDemand, Backoff: plugin.Backoff{Min: second}, Limit: -1}}, false, func(error) {})
		s.Tell(machine.Demand{})
		t.Cleanup(s.end)
		time.Sleep(time.Hour)
		s.expect(t, plugin.StateRunning, 3, 1)
		if pauses := []time.Duration{s.begins[1].Sub(s.begins[0]) - time.Minute, s.begins[2].Sub(s.begins[1]) - second}; pauses[0] != 0 ||
			pauses[1] < second/2 {
			t.Errorf("the pauses are %v", pauses)
		}
	})
}

// TestAnyOrder: in any order of requests there is one process at a time, and at the end one runs or the plugin has failed.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, func(t *testing.T) {
			p := &fakeProgram{linger: rapid.SampledFrom([]time.Duration{0, second}).Draw(rt, "linger")}
			for range rapid.IntRange(0, 20).Draw(rt, "ends") {
				after := rapid.SampledFrom([]time.Duration{0, 1, second, time.Minute}).Draw(rt, "after")
				p.ends = append(p.ends, end{after: after, err: errCrash})
			}
			p.ends = append(p.ends, end{})
			s := start(t, plugin.RestartPolicy{Policy: plugin.RestartAlways, Limit: 2, Backoff: plugin.Backoff{Max: 2 * second}}, p)
			for range rapid.IntRange(1, 30).Draw(rt, "steps") {
				s.again()
				time.Sleep(rapid.SampledFrom([]time.Duration{0, 1, second, 5 * second, time.Hour}).Draw(rt, "pause"))
				status := s.Status()
				if status.State == plugin.StateBackoff && status.NextStart.IsZero() ||
					status.State != plugin.StateBackoff && !status.NextStart.IsZero() {
					rt.Fatalf("%+v", status)
				}
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			state := s.Status().State
			_, alive := p.count()
			if ok := state == plugin.StateRunning && alive == 1 || state == plugin.StateFailed && alive == 0; !ok {
				rt.Fatalf("%s with %d alive", state, alive)
			}
			s.end()
		})
	})
}

// bubble runs f in its own synctest bubble, and repeats the panic of a failed property outside.
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

// later is a Pace that keeps its goroutines for the test to run.
type later struct {
	supervise.Real

	begun []func()
}

func (l *later) Go(f func()) { l.begun = append(l.begun, f) }

// TestReleasedBeforeItIsWaitedFor: an adopted process may be released before the Unit waits for its end.
func TestReleasedBeforeItIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := &later{Real: supervise.Real{WaitGroup: new(sync.WaitGroup)}}
		p := &fakeProgram{ends: []end{{}}}
		u := supervise.New(&supervised{}, pace)
		u.Configure(p, machine.Description{Survives: true}, false, func(error) {})
		survivor, err := p.Launch(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		u.Survivor(survivor)
		u.Tell(machine.Start{})
		if u.Process() != survivor {
			t.Fatal("it was not taken over")
		}
		u.Tell(machine.Close{})
		for _, f := range pace.begun {
			f()
		}
		if _, alive := p.count(); alive != 1 {
			t.Errorf("%d are alive", alive)
		}
	})
}
