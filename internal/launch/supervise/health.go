package supervise

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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

// Checks has the settings of health checks. There are no defaults. Each interval is randomly shortened by up to 10 %. A plugin that hangs
// is Unresponsive after at most Interval + Misses × Timeout, except on a slow machine; see Crowd.
type Checks struct {
	plugin.HealthCheck
	// Service is the name of the service to check. If it is empty, the whole plugin is checked, and also watched. A named service is not
	// watched, because that would occupy one of its workers.
	Service string
	// Pending counts the calls to the plugin, which may have only one worker: during a call that began before the missed checks, the plugin
	// is not Unresponsive, and an answer to a call counts as an answer to a check. A call during which the plugin has answered a check is
	// ignored. May be nil.
	Pending *pendingcalls.Counter
	// Crowd has the plugins of this machine.
	Crowd *Crowd
}

// Crowd counts the plugins whose health is followed, and those of them that have not answered the last check and are not Unresponsive. Many
// plugins do not begin to hang at the same time, but a slow machine makes all of them late: then more checks would make it slower, and a
// plugin is Unresponsive only after slowTimes as many missed checks.
type Crowd struct{ followed, missing atomic.Int64 }

const (
	// On a slow machine, at least manyMissing plugins are missing, and one in manyShare of those that are followed.
	manyMissing, manyShare = 8, 8
	slowTimes              = 10
)

func (c *Crowd) isSlow() bool {
	missing := c.missing.Load()
	return missing >= manyMissing && missing >= c.followed.Load()/manyShare
}

// firstCheck is the longest delay of the first check. When a plugin becomes ready, it has just answered, and its first callers have
// priority.
const firstCheck = time.Second / 10

type follower struct {
	Checks
	client  healthpb.HealthClient
	observe func(machine.HealthFound)

	misses  int    // checks in a row without an answer
	missing bool   // counted in Crowd
	answers uint64 // number of answers to calls at the last missed check

	mu      sync.Mutex // guards current; held during observe, so that its calls are in order
	current plugin.ServingStatus
}

var errNotOffered = errors.New("health is not offered")

// AwaitFirstCheck blocks until it is time to connect to a plugin that has just become ready, for [FollowHealth], or ctx is done. It reports
// false if ctx is done.
func AwaitFirstCheck(ctx context.Context) bool {
	return backoff.Pause(ctx, firstCheck/2+rand.N(firstCheck/2))
}

// FollowHealth calls observe with each new state of a plugin's health, in order, until ctx is done or the plugin does not offer health
// checks. It calls Check at an interval, because only a call shows whether the plugin answers, and Watch for changes between the checks.
// observe must not block.
func FollowHealth(ctx context.Context, conn grpc.ClientConnInterface, checks Checks, observe func(machine.HealthFound)) {
	h := &follower{Checks: checks, client: healthpb.NewHealthClient(conn), observe: observe, current: plugin.ServingStatusUnknown}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	h.Crowd.followed.Add(1)
	defer h.Crowd.followed.Add(-1)
	defer h.setMissing(false)
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
			h.set(plugin.ServingStatusNotOffered, nil)
			return
		case err != nil:
			hangs := h.missed()
			if h.setMissing(!hangs && !h.Pending.Marked()); hangs {
				h.set(plugin.ServingStatusUnresponsive, err)
			}
			if h.misses < h.Misses && !h.Crowd.isSlow() {
				wait = h.Timeout
			}
		default:
			h.misses = 0
			h.setMissing(false)
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
	return h.misses >= h.Misses && !h.Pending.Marked() && (h.misses >= slowTimes*h.Misses || !h.Crowd.isSlow())
}

func (h *follower) setMissing(missing bool) {
	if missing == h.missing {
		return
	}
	h.missing = missing
	if missing {
		h.Crowd.missing.Add(1)
	} else {
		h.Crowd.missing.Add(-1)
	}
}

// check makes one check. An error other than errNotOffered means that the plugin has not answered.
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
		h.set(plugin.ServingStatusNotServing, fmt.Errorf("the health check was answered with an error: %w", err))
		return nil
	}
}

// watch sets the state from the notifications of the plugin. It ignores errors of the stream: check detects a plugin that does not answer.
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
		h.set(plugin.ServingStatusServing, nil)
	case healthpb.HealthCheckResponse_NOT_SERVING:
		h.set(plugin.ServingStatusNotServing, nil)
	case healthpb.HealthCheckResponse_SERVICE_UNKNOWN: // only a watch is notified; the check decides
	default:
		h.set(plugin.ServingStatusNotServing, fmt.Errorf("the plugin reports the health %v", s))
	}
}

// set changes the state and calls observe, unless the state is the same.
func (h *follower) set(state plugin.ServingStatus, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == state {
		return
	}
	h.current = state
	h.observe(machine.HealthFound{State: state, Err: err})
}
