package machine

import (
	"cmp"
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/launch"
)

// Restart is the set of exits after which a plugin is restarted.
type Restart int

// The restart policies.
const (
	OnFailure Restart = iota // after an end with an error
	Always                   // after every end
	Never                    // after none
	OnDemand                 // after every end, but only when somebody needs it
)

// Upgrade is the way in which a new process of a plugin replaces an old one.
type Upgrade int

// The kinds of upgrades. Of a plugin that does not serve, the old process always ends first.
const (
	SideBySide Upgrade = iota // the old one is stopped when the new one is ready
	Recreate                  // the new one is started when the old one has ended
	Handover                  // as side by side; the socket stays, which is the host's business
)

// Policy decides when a plugin is restarted. Zero durations and counts stand for the defaults.
type Policy struct {
	Restart    Restart
	MinBackoff time.Duration // no pause between two processes is shorter; default 500 ms
	MaxBackoff time.Duration // none is longer; default 1 min
	Limit      int           // so many restarts within Window, and the next one makes it failed; default 10, negative: no limit
	Window     time.Duration // it slides; default 10 min
	Healthy    time.Duration // a process that was ready and lasted so long starts the back-off over; default 1 min

	// RestartUnresponsive ends a process, as a failure, when it does not answer health checks any more.
	RestartUnresponsive bool
}

// WithDefaults returns the policy with the defaults in the fields that are not set.
func (p Policy) WithDefaults() Policy {
	p.MinBackoff = cmp.Or(max(p.MinBackoff, 0), launch.DefaultMinBackoff)
	p.MaxBackoff = max(cmp.Or(max(p.MaxBackoff, 0), launch.DefaultMaxBackoff), p.MinBackoff)
	p.Limit = cmp.Or(p.Limit, launch.DefaultRestartLimit)
	p.Window = cmp.Or(max(p.Window, 0), launch.DefaultRestartWindow)
	p.Healthy = cmp.Or(max(p.Healthy, 0), time.Minute)
	return p
}

// restarts reports whether a plugin is restarted after a process that exited with err.
func (p Policy) restarts(err error) bool {
	return p.Restart == Always || p.Restart == OnDemand || p.Restart == OnFailure && err != nil
}

// pause returns how long to wait after n processes in a row that were not healthy.
func (p Policy) pause(n int, chance float64) time.Duration {
	if p.Restart == OnDemand { // whoever needs it waits: the sooner the better
		return backoff.Backoff{Min: p.MinBackoff, Max: p.MaxBackoff}.At(n, chance)
	}
	b := backoff.Backoff{Min: min(2*p.MinBackoff, p.MaxBackoff), Max: p.MaxBackoff}
	return max(p.MinBackoff, b.At(n, chance))
}

// history is what the policy has to know of the processes before.
type history struct {
	restarts  int         // all of them
	recent    []time.Time // those that may lie within the window, oldest first
	unhealthy int         // processes in a row that were not healthy
	unready   int         // processes in a row that were never ready
	told      string      // why the last start failed, which is told once; empty after one that did not
}

// repeats reports whether a start failed with the same error as the previous one.
func (h *history) repeats(err error) bool {
	before := h.told
	h.told = err.Error()
	return h.told == before
}

// ended takes the end of a process that is to be followed by another one; lasted is zero if the process was never ready. It returns the
// pause before the next one, or why there is none.
func (h *history) ended(p Policy, at Moment, lasted time.Duration) (pause time.Duration, tooMany string) {
	for len(h.recent) > 0 && at.Now.Sub(h.recent[0]) >= p.Window {
		h.recent = h.recent[1:]
	}
	h.unready++
	if lasted > 0 {
		h.unready = 0
	}
	switch {
	case p.Limit > 0 && len(h.recent) >= p.Limit:
		return 0, fmt.Sprintf("given up after %d restarts within %v", p.Limit, p.Window)
	case p.Limit > 0 && h.unready > p.Limit: // slow starts are more than a window long
		return 0, fmt.Sprintf("given up after %d starts in a row, none of which became ready", h.unready)
	case p.Limit > 0:
		h.recent = append(h.recent, at.Now)
	}
	h.restarts++
	if lasted >= p.Healthy {
		h.unhealthy = 0
		if p.Restart == OnDemand { // whoever needs it waits
			return 0, ""
		}
	}
	h.unhealthy++
	return p.pause(h.unhealthy, at.Chance), ""
}
