package machine

import (
	"cmp"
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/launch"
	"github.com/patchbay-dev/patchbay/plugin"
)

// OnDemand restarts a plugin after every exit, but only if a caller needs it.
const OnDemand plugin.Restart = "on-demand"

// WithDefaults returns the description with the defaults in the fields that are not set.
func (d Description) WithDefaults() Description {
	p := &d.Restart
	p.Policy = cmp.Or(p.Policy, plugin.RestartOnFailure)
	p.Backoff.Min = cmp.Or(max(p.Backoff.Min, 0), launch.DefaultMinBackoff)
	p.Backoff.Max = max(cmp.Or(max(p.Backoff.Max, 0), launch.DefaultMaxBackoff), p.Backoff.Min)
	p.Limit = cmp.Or(p.Limit, launch.DefaultRestartLimit)
	p.Window = cmp.Or(max(p.Window, 0), launch.DefaultRestartWindow)
	d.Healthy = cmp.Or(max(d.Healthy, 0), time.Minute)
	d.StartTimeout = cmp.Or(d.StartTimeout, launch.DefaultStartTimeout)
	return d
}

func (d Description) onDemand() bool { return d.Restart.Policy == OnDemand }

// restarts reports whether a plugin is restarted after a process that exited with err.
func (d Description) restarts(err error) bool {
	return d.Restart.Policy == plugin.RestartAlways || d.onDemand() || d.Restart.Policy == plugin.RestartOnFailure && err != nil
}

// pause returns how long to wait after n processes in a row that were not healthy.
func (d Description) pause(n int, chance float64) time.Duration {
	shortest, longest := d.Restart.Backoff.Min, d.Restart.Backoff.Max
	if d.onDemand() { // without the first doubling, because callers wait
		return backoff.Backoff{Min: shortest, Max: longest}.At(n, chance)
	}
	b := backoff.Backoff{Min: min(2*shortest, longest), Max: longest}
	return max(shortest, b.At(n, chance))
}

// history has the counts of earlier processes.
type history struct {
	restarts  int         // total number
	recent    []time.Time // restarts within the window, oldest first
	unhealthy int         // processes in a row that were not healthy
	unready   int         // processes in a row that were never ready
	trouble   trouble     // what the plugin has not recovered from
	told      string      // why the last start failed, which is reported once; empty after a start that did not fail
}

// trouble is what has failed since the plugin was healthy. The zero value is none.
type trouble struct {
	since time.Time // of the first failure
	last  error     // the last failure
	// until is when the plugin is healthy again if it does not fail; zero if it was not ready since its last failure.
	until time.Time
}

// repeats reports whether a start failed with the same error as the previous one.
func (h *history) repeats(err error) bool {
	before := h.told
	h.told = err.Error()
	return h.told == before
}

// ended records the exit of a process that is to be restarted; lasted is zero if the process was never ready. It returns the pause before
// the restart, or why there is none.
func (h *history) ended(d Description, at Moment, lasted time.Duration) (pause time.Duration, tooMany string) {
	limit, window := d.Restart.Limit, d.Restart.Window
	for len(h.recent) > 0 && at.Now.Sub(h.recent[0]) >= window {
		h.recent = h.recent[1:]
	}
	h.unready++
	if lasted > 0 {
		h.unready = 0
	}
	switch {
	case limit > 0 && len(h.recent) >= limit:
		return 0, fmt.Sprintf("given up after %d restarts within %v", limit, window)
	case limit > 0 && h.unready > limit: // slow starts are more than a window long
		return 0, fmt.Sprintf("given up after %d starts in a row, none of which became ready", h.unready)
	case limit > 0:
		h.recent = append(h.recent, at.Now)
	}
	h.restarts++
	if lasted >= d.Healthy {
		h.unhealthy = 0
		if d.onDemand() { // callers wait
			return 0, ""
		}
	}
	h.unhealthy++
	return d.pause(h.unhealthy, at.Chance), ""
}
