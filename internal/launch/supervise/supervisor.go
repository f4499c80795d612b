package supervise

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// State is what a Supervisor does.
type State string

// The states of a Supervisor.
const (
	Starting State = "starting" // Run has not begun the first life yet
	Running  State = "running"
	Backoff  State = "backoff" // until Status.NextStart
	Failed   State = "failed"  // too many restarts: until Restart or Start
	Stopped  State = "stopped" // by Stop until Restart or Start, or because Run has returned
)

// Status is what a Supervisor does at present.
type Status struct {
	State     State
	Restarts  int       // automatic ones, since the first life or the last Restart or Start
	LastError error     // how the last life that ended by itself ended; nil after a clean exit, but for a plugin that is Failed
	NextStart time.Time // when the next life begins; in Backoff only
	Since     time.Time // when State was entered
}

// errClean is the LastError of a plugin that failed by ending cleanly too often.
var errClean = errors.New("it ended by itself, without an error")

// A Supervisor runs a Runner again and again. All methods may be called at once from several goroutines, but Run only once at a time.
type Supervisor struct {
	policy  Policy
	runner  Runner
	observe func(Status)
	asked   chan struct{} // holds a token when the operator has asked for something

	mu      sync.Mutex
	status  Status
	history history
	active  bool   // Run is running
	stopped bool   // the operator wants no life
	anew    bool   // the operator wants another life, now
	failure error  // why the running life is being ended as a failure
	end     func() // ends the running life; nil if there is none
}

// New makes a Supervisor. observe, if not nil, is called with each new status, in order, on the goroutine of Run; it may call all
// methods but Run.
func New(policy Policy, runner Runner, observe func(Status)) *Supervisor {
	if observe == nil {
		observe = func(Status) {}
	}
	return &Supervisor{
		policy: policy.withDefaults(), runner: runner, observe: observe,
		asked:  make(chan struct{}, 1),
		status: Status{State: Starting, Since: time.Now()},
	}
}

// Run supervises until ctx ends, which it answers with nil, or until the policy wants no further life: then it returns the error of the
// last one, nil after a clean exit. It waits for a running life to end. While the plugin is Failed or was stopped it blocks. It may be
// called again after it has returned.
func (s *Supervisor) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.active {
		s.mu.Unlock()
		return errors.New("cannot supervise the plugin: it is supervised already")
	}
	s.active = true
	s.mu.Unlock()
	defer func() {
		s.set(Stopped, time.Time{})
		s.mu.Lock()
		s.active = false
		s.mu.Unlock()
	}()

	next := time.Now()
	for {
		life, cancel := context.WithCancel(ctx)
		if !s.await(life, cancel, next) {
			cancel()
			return nil
		}
		begun := time.Now()
		err := s.live(life)
		cancel()
		if ctx.Err() != nil {
			s.clear()
			return nil
		}
		var over bool
		if next, over = s.ended(err, time.Since(begun)); over {
			return err
		}
	}
}

// await blocks until the next life is to begin, at the time next if it is not zero and the operator says nothing, and has it begin: end is
// then what ends it. It returns false when ctx ends before.
func (s *Supervisor) await(ctx context.Context, end func(), next time.Time) bool {
	for {
		s.mu.Lock()
		due := !next.IsZero() && !time.Now().Before(next)
		switch {
		case ctx.Err() != nil:
			s.mu.Unlock()
			return false
		case s.anew || due && !s.stopped:
			if s.anew {
				s.history = history{}
			}
			s.anew, s.failure, s.end = false, nil, end
			s.mu.Unlock()
			s.set(Running, time.Time{})
			return true
		case s.stopped:
			next = time.Time{}
			s.mu.Unlock()
			s.set(Stopped, time.Time{})
		default:
			s.mu.Unlock()
		}

		var timeout <-chan time.Time
		if !next.IsZero() {
			timeout = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
		case <-s.asked:
		case <-timeout:
		}
	}
}

// live is one life.
func (s *Supervisor) live(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the plugin's runner panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return s.runner.Run(ctx)
}

// clear says that there is no life any more.
func (s *Supervisor) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end, s.failure = nil, nil
}

// ended takes the end of a life. It returns when the next one begins, if the operator says nothing: zero for never; or that it is over.
func (s *Supervisor) ended(err error, lasted time.Duration) (next time.Time, over bool) {
	now := time.Now()
	s.mu.Lock()
	if s.failure != nil {
		err = s.failure
	}
	s.end, s.failure = nil, nil
	if s.stopped || s.anew {
		s.mu.Unlock()
		return time.Time{}, false
	}
	s.status.LastError = err
	if !s.policy.restarts(err) {
		s.mu.Unlock()
		return time.Time{}, true
	}
	pause, tooMany := s.history.ended(s.policy, now, lasted)
	if tooMany {
		if err == nil {
			err = errClean
		}
		s.status.LastError = fmt.Errorf("given up after %d restarts within %v: %w", s.policy.Limit, s.policy.Window, err)
		s.mu.Unlock()
		s.set(Failed, time.Time{})
		return time.Time{}, false
	}
	s.mu.Unlock()
	next = now.Add(pause)
	s.set(Backoff, next)
	return next, false
}

// set enters a state and tells the observer. Only Running may follow on itself: it is another life then.
func (s *Supervisor) set(state State, next time.Time) {
	s.mu.Lock()
	if s.status.State == state && state != Running {
		s.mu.Unlock()
		return
	}
	s.status.State, s.status.NextStart, s.status.Since, s.status.Restarts = state, next, time.Now(), s.history.restarts
	status := s.status
	s.mu.Unlock()
	s.observe(status)
}

// Status returns the present status.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}
