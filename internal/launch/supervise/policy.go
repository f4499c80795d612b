package supervise

import (
	"context"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

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
	set := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&p.MinBackoff, time.Second)
	set(&p.MaxBackoff, time.Minute)
	set(&p.Window, 10*time.Minute)
	set(&p.Healthy, time.Minute)
	if p.Limit == 0 {
		p.Limit = 10
	}
	p.MaxBackoff = max(p.MaxBackoff, p.MinBackoff)
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

// history is what a policy looks back on.
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
