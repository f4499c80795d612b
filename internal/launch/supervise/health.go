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
)

// How a plugin is asked. One that hangs is Unresponsive after at most 2.5 s: checkInterval, and maxMisses times checkTimeout.
const (
	checkInterval = time.Second            // between two checks that are answered, less up to a tenth, by chance
	firstCheck    = time.Second / 10       // at the latest; a plugin has just answered when it is ready, and its first callers go first
	checkTimeout  = 500 * time.Millisecond // within which a check must be answered
	maxMisses     = 3                      // checks in a row without an answer. To be slow once is not to be dead
)

type follower struct {
	client  healthpb.HealthClient
	observe func(machine.HealthFound)

	mu      sync.Mutex // held while observe runs, which puts the calls in order
	current machine.HealthState
}

var errNotOffered = errors.New("health is not offered")

// FollowHealth finds out how a running plugin is, until ctx ends or it is clear that the plugin does not offer health. It checks at an
// interval whether the plugin answers, which nobody can tell but by asking, and where the plugin offers Watch it learns at once what it
// answers. observe is called with each new state, in order; it must not block.
func FollowHealth(ctx context.Context, conn grpc.ClientConnInterface, observe func(machine.HealthFound)) {
	h := &follower{client: healthpb.NewHealthClient(conn), observe: observe, current: machine.Unknown}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	if !backoff.Pause(ctx, firstCheck/2+rand.N(firstCheck/2)) {
		return
	}
	watching.Go(func() { h.watch(ctx) })

	for misses := 0; ; {
		begun := time.Now()
		err := h.check(ctx)
		wait := checkInterval - rand.N(checkInterval/10)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNotOffered):
			h.set(machine.NotOffered, nil)
			return
		case err != nil:
			if misses++; misses >= maxMisses {
				h.set(machine.Unresponsive, err)
			} else {
				wait = checkTimeout
			}
		default:
			misses = 0
		}
		if !backoff.Pause(ctx, wait-time.Since(begun)) {
			return
		}
	}
}

// check asks once. An error other than errNotOffered says that there was no answer.
func (h *follower) check(ctx context.Context) error {
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
		if status.Code(err) == codes.Unimplemented || !backoff.Pause(ctx, checkInterval) {
			return
		}
	}
}

// answered takes an answer of the plugin.
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
