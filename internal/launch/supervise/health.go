package supervise

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Checks are the settings for checks of health, without defaults. Each Interval is shortened by up to a tenth at random. A plugin that
// hangs is Unresponsive after at most Interval and Misses times Timeout.
type Checks struct {
	plugin.HealthCheck
	// Service is the service to check; empty for the plugin as a whole, which is watched, too. A service is not watched: that would occupy a
	// worker of a plugin that may have few.
	Service string
	// Pending are the calls to the plugin, which may have one worker: while it works on a call that was made before these checks, it is not
	// Unresponsive, and an answer to a call counts as one to a check. A call during which it has answered checks does not count. Nil if there
	// are none.
	Pending *pendingcalls.Counter
}

// firstCheck is when the first check is made, at the latest: a plugin has just answered when it is ready, and its first callers go first.
const firstCheck = time.Second / 10

type follower struct {
	Checks
	client  healthpb.HealthClient
	observe func(machine.HealthFound)

	misses  int    // in a row
	answers uint64 // to calls, as of the last check

	mu      sync.Mutex // held while observe runs, which puts the calls in order
	current machine.HealthState
}

var errNotOffered = errors.New("health is not offered")

// FollowHealth finds out how a running plugin is, until ctx ends or it is clear that the plugin does not offer health. It checks at an
// interval whether the plugin answers, which nobody can tell but by asking, and where the plugin offers Watch it learns at once what it
// answers. observe is called with each new state, in order; it must not block.
func FollowHealth(ctx context.Context, conn grpc.ClientConnInterface, checks Checks, observe func(machine.HealthFound)) {
	h := &follower{Checks: checks, client: healthpb.NewHealthClient(conn), observe: observe, current: machine.Unknown}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	if !backoff.Pause(ctx, firstCheck/2+rand.N(firstCheck/2)) {
		return
	}
	if h.Service == "" {
		watching.Go(func() { h.watch(ctx) })
	}

	for {
		begun := time.Now()
		if h.misses == 0 {
			h.Pending.Mark()
		}
		err := h.check(ctx)
		wait := h.Interval - rand.N(h.Interval/10+1)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNotOffered):
			h.set(machine.NotOffered, nil)
			return
		case err != nil:
			if h.missed() {
				h.set(machine.Unresponsive, err)
			}
			if h.misses < h.Misses {
				wait = h.Timeout
			}
		default:
			h.misses = 0
			h.Pending.Passed()
		}
		if !backoff.Pause(ctx, wait-time.Since(begun)) {
			return
		}
	}
}

// missed counts a check without an answer, and reports whether the plugin hangs.
func (h *follower) missed() bool {
	if answers := h.Pending.Answers(); answers != h.answers {
		h.answers, h.misses = answers, 0
	}
	if h.misses == 0 {
		h.Pending.Mark()
	}
	h.misses++
	return h.misses >= h.Misses && !h.Pending.Marked()
}

// check asks once. An error other than errNotOffered means that there was no answer.
func (h *follower) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	response, err := h.client.Check(ctx, &healthpb.HealthCheckRequest{Service: h.Service})
	switch status.Code(err) {
	case codes.OK:
		h.answered(response)
		return nil
	case codes.Unimplemented, codes.NotFound:
		return errNotOffered
	case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		return fmt.Errorf("no answer to a health check within %v: %w", h.Timeout, err)
	default:
		h.set(machine.NotServing, fmt.Errorf("the health check was answered with an error: %w", err))
		return nil
	}
}

// watch takes what the plugin tells by itself. That it tells nothing means nothing, so it is left to check to find out what an end of the
// stream means.
func (h *follower) watch(ctx context.Context) {
	for {
		stream, err := h.client.Watch(ctx, &healthpb.HealthCheckRequest{})
		for err == nil {
			var response *healthpb.HealthCheckResponse
			if response, err = stream.Recv(); err == nil {
				h.answered(response)
			}
		}
		if status.Code(err) == codes.Unimplemented || !backoff.Pause(ctx, h.Interval) {
			return
		}
	}
}

func (h *follower) answered(response *healthpb.HealthCheckResponse) {
	switch s := response.GetStatus(); s {
	case healthpb.HealthCheckResponse_SERVING:
		h.set(machine.Healthy, nil)
	case healthpb.HealthCheckResponse_NOT_SERVING:
		h.set(machine.NotServing, nil)
	case healthpb.HealthCheckResponse_SERVICE_UNKNOWN: // only a watch is notified; the check decides
	default:
		h.set(machine.NotServing, fmt.Errorf("the plugin reports the health %v", s))
	}
}

// set enters a state, if it is not there yet, and tells the observer.
func (h *follower) set(state machine.HealthState, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == state {
		return
	}
	h.current = state
	h.observe(machine.HealthFound{State: state, Err: err})
}
