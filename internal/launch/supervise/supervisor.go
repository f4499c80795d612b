// Package supervise decides when a plugin that ended is started again, and finds out whether one that runs is well.
//
// A Supervisor wraps a Runner, which is one life of a plugin, in a Policy. A Health asks a plugin through grpc.health.v1; its outcome may
// end a life, if the Policy says so. Neither knows processes or connections: package host has them, and puts the two together.
package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// State is what a Supervisor does.
type State string

// The states of a Supervisor.
const (
	Starting State = "starting" // Run has not begun the first life yet
	Running  State = "running"
	Backoff  State = "backoff" // until Status.NextStart
	Failed   State = "failed"  // too many restarts: until Start
	Stopped  State = "stopped" // Run has returned
)

// Status is what a Supervisor does at present.
type Status struct {
	State     State
	Restarts  int       // automatic ones, since the first life or the last Start
	LastError error     // how the last life that ended by itself ended; nil after a clean exit, but for a plugin that is Failed
	NextStart time.Time // when the next life begins; in Backoff only
	Since     time.Time // when State was entered
}

// errClean is the LastError of a plugin that failed by ending cleanly too often.
var errClean = errors.New("it ended by itself, without an error")

// A Supervisor runs a Runner again and again. All methods may be called at once from several goroutines, but Run only once.
type Supervisor struct {
	policy  Policy
	runner  Runner
	observe func(Status)
	asked   chan struct{} // holds a token when Start has asked for a life

	mu      sync.Mutex
	status  Status
	history history
	failure error  // why the running life is being ended as a failure
	end     func() // ends the running life; nil if there is none
}

// New makes a Supervisor. observe is called with each new status, in order, on the goroutine of Run; it may call all methods but Run.
func New(policy Policy, runner Runner, observe func(Status)) *Supervisor {
	return &Supervisor{
		policy: policy.withDefaults(), runner: runner, observe: observe,
		asked:  make(chan struct{}, 1),
		status: Status{State: Starting, Since: time.Now()},
	}
}

// Run supervises until ctx ends, which it answers with nil, or until the policy wants no further life: then it returns the error of the
// last one, nil after a clean exit. It waits for a running life to end. While the plugin is Failed it blocks.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.set(Stopped, time.Time{})
	for next := time.Now(); s.await(ctx, next); {
		begun := time.Now()
		err := s.live(ctx)
		if ctx.Err() != nil {
			break
		}
		var over bool
		if next, over = s.ended(err, time.Since(begun)); over {
			return err
		}
	}
	return nil
}

// Start has the next life begin now. Counts and back-off begin anew, also for a plugin that is Failed. One that runs is left alone. It does
// not block.
func (s *Supervisor) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return
	}
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

// Health takes what a Health has found out about the running life, and ends it as a failure if the policy says so. It is to be called
// for the running life only: a Runner that owns a Health waits for its end before it returns. It does not block.
func (s *Supervisor) Health(found HealthStatus) {
	if found.State != Unresponsive || !s.policy.RestartUnresponsive {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil && s.failure == nil {
		s.failure = fmt.Errorf("the plugin is unresponsive: %w", found.Err)
		s.end()
	}
}

// await blocks until the next life is to begin: at the time next, if it is not zero, or when Start asks for it. It returns false when ctx
// ends before.
func (s *Supervisor) await(ctx context.Context, next time.Time) bool {
	var due <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-s.asked:
		s.mu.Lock()
		s.history = history{}
		s.mu.Unlock()
	case <-due:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

func (s *Supervisor) live(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.end = cancel
	select {
	case <-s.asked: // in the moment in which this life was due: it is the one
		s.history = history{}
	default:
	}
	s.mu.Unlock()
	s.set(Running, time.Time{})
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the plugin's runner panicked: %v\n%s", v, debug.Stack())
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.failure != nil {
			err = s.failure
		}
		s.end, s.failure = nil, nil
	}()
	return s.runner.Run(ctx)
}

// ended takes the end of a life. It returns when the next one begins, zero for not before Start asks for it; or that it is over.
func (s *Supervisor) ended(err error, lasted time.Duration) (next time.Time, over bool) {
	now := time.Now()
	s.mu.Lock()
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

func (s *Supervisor) set(state State, next time.Time) {
	s.mu.Lock()
	s.status.State, s.status.NextStart, s.status.Since, s.status.Restarts = state, next, time.Now(), s.history.restarts
	now := s.status
	s.mu.Unlock()
	s.observe(now)
}

// Status returns the present status.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Restart says after which ends a Runner is run again.
type Restart int

// The restart policies.
const (
	Always    Restart = iota // after every end
	OnFailure                // after an end with an error
	Never                    // after none
)

// Policy says when a Runner is run again. Zero durations and counts stand for the defaults.
type Policy struct {
	Restart    Restart
	MinBackoff time.Duration // no pause between two lives is shorter; default 1 s
	MaxBackoff time.Duration // none is longer; default 1 min
	Limit      int           // so many restarts within Window, and the next one makes it failed; default 10, negative: no limit
	Window     time.Duration // it slides; default 10 min
	Healthy    time.Duration // a life that lasted so long starts the back-off anew; default 1 min

	// RestartUnresponsive ends a life, as a failure, when its health becomes Unresponsive.
	RestartUnresponsive bool
}

// Runner is what is supervised.
type Runner interface {
	// Run is one life of a plugin, from its start to its end. It returns when nothing of it is left: nil after a clean exit. When
	// ctx ends, so must it, gracefully within its own deadlines; what it returns then is not looked at. A panic is an error.
	Run(ctx context.Context) error
}

func (p Policy) withDefaults() Policy {
	p.MinBackoff = cmp.Or(max(p.MinBackoff, 0), time.Second)
	p.MaxBackoff = max(cmp.Or(max(p.MaxBackoff, 0), time.Minute), p.MinBackoff)
	p.Limit = cmp.Or(p.Limit, 10)
	p.Window = cmp.Or(max(p.Window, 0), 10*time.Minute)
	p.Healthy = cmp.Or(max(p.Healthy, 0), time.Minute)
	return p
}

// restarts says whether the policy wants another life after one that ended with err.
func (p Policy) restarts(err error) bool {
	switch p.Restart {
	case Always:
		return true
	case OnFailure:
		return err != nil
	default:
		return false
	}
}

// pause returns how long to wait after n lives in a row that were not healthy, n being at least 1.
func (p Policy) pause(n int) time.Duration {
	b := backoff.Backoff{Min: min(2*p.MinBackoff, p.MaxBackoff), Max: p.MaxBackoff}
	return max(p.MinBackoff, b.After(n))
}

type history struct {
	restarts  int         // all of them
	recent    []time.Time // those that may lie within the window, oldest first
	unhealthy int         // lives in a row that were shorter than Healthy
}

// ended takes the end of a life that is to be followed by another one. It returns the pause before it, or that there were too many.
func (h *history) ended(p Policy, now time.Time, lasted time.Duration) (pause time.Duration, tooMany bool) {
	for len(h.recent) > 0 && now.Sub(h.recent[0]) >= p.Window {
		h.recent = h.recent[1:]
	}
	if p.Limit > 0 && len(h.recent) >= p.Limit {
		return 0, true
	}
	if p.Limit > 0 {
		h.recent = append(h.recent, now)
	}
	h.restarts++
	if lasted >= p.Healthy {
		h.unhealthy = 0
	}
	h.unhealthy++
	return p.pause(h.unhealthy), false
}

// HealthState is how a plugin is.
type HealthState string

// The states of health.
const (
	Unknown      HealthState = "unknown"      // nothing has been heard yet
	notOffered   HealthState = "not-offered"  // the plugin does not offer grpc.health.v1, or does not know of itself
	serving      HealthState = "serving"      // it says so
	NotServing   HealthState = "not-serving"  // it says so, or answers with an error
	Unresponsive HealthState = "unresponsive" // it does not answer
)

// HealthStatus is the present outcome.
type HealthStatus struct {
	State HealthState
	Err   error // why it is NotServing or Unresponsive, if there is more to say
}

// How a plugin is asked. One that hangs is Unresponsive after at most 2.5 s: checkInterval, and maxMisses times checkTimeout.
const (
	checkInterval = time.Second            // between two checks that are answered, less up to a tenth, by chance
	checkTimeout  = 500 * time.Millisecond // within which a check must be answered
	maxMisses     = 3                      // checks in a row without an answer. To be slow once is not to be dead
)

// A Health finds out how one running plugin is. It checks at an interval whether the plugin answers, which nobody can tell but by asking,
// and where the plugin offers Watch it learns at once what it answers.
type Health struct {
	client  healthpb.HealthClient
	observe func(HealthStatus)

	mu      sync.Mutex // held while observe runs, which puts the calls in order
	current HealthState
}

// NewHealth makes a Health that asks over conn. observe is called with each new state, in order; it must not block.
func NewHealth(conn grpc.ClientConnInterface, observe func(HealthStatus)) *Health {
	return &Health{client: healthpb.NewHealthClient(conn), observe: observe, current: Unknown}
}

// errNotOffered ends a Health.
var errNotOffered = errors.New("health is not offered")

// Run asks until ctx ends, or until it is clear that the plugin does not offer health; it returns nil after both.
func (h *Health) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { h.watch(ctx) })

	for misses := 0; ; {
		begun := time.Now()
		err := h.check(ctx)
		wait := checkInterval - rand.N(checkInterval/10)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errNotOffered):
			h.set(notOffered, nil)
			return nil
		case err != nil:
			if misses++; misses >= maxMisses {
				h.set(Unresponsive, err)
			} else {
				wait = checkTimeout
			}
		default:
			misses = 0
		}
		if !backoff.Pause(ctx, wait-time.Since(begun)) {
			return nil
		}
	}
}

// check asks once. An error other than errNotOffered says that there was no answer.
func (h *Health) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	response, err := h.client.Check(ctx, &healthpb.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.OK:
		h.answered(response)
		return nil
	case codes.Unimplemented, codes.NotFound:
		return errNotOffered
	case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		return fmt.Errorf("no answer to a health check within %v: %w", checkTimeout, err)
	default:
		h.set(NotServing, fmt.Errorf("the health check was answered with an error: %w", err))
		return nil
	}
}

// watch takes what the plugin tells by itself. That it tells nothing means nothing, so it is left to check to find out what an end of the
// stream means.
func (h *Health) watch(ctx context.Context) {
	for {
		stream, err := h.client.Watch(ctx, &healthpb.HealthCheckRequest{})
		for err == nil {
			var response *healthpb.HealthCheckResponse
			if response, err = stream.Recv(); err == nil {
				h.answered(response)
			}
		}
		if status.Code(err) == codes.Unimplemented || !backoff.Pause(ctx, checkInterval) {
			return
		}
	}
}

// answered takes an answer of the plugin.
func (h *Health) answered(response *healthpb.HealthCheckResponse) {
	switch s := response.GetStatus(); s {
	case healthpb.HealthCheckResponse_SERVING:
		h.set(serving, nil)
	case healthpb.HealthCheckResponse_NOT_SERVING:
		h.set(NotServing, nil)
	case healthpb.HealthCheckResponse_SERVICE_UNKNOWN: // only a watch is told so; the check decides
	default:
		h.set(NotServing, fmt.Errorf("the plugin reports the health %v", s))
	}
}

// set enters a state, if it is not there yet, and tells the observer.
func (h *Health) set(state HealthState, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == state {
		return
	}
	h.current = state
	h.observe(HealthStatus{State: state, Err: err})
}
