package reconciler

import (
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/discover/clock"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
)

// latePace is the pace of a goroutine that is scheduled a second late after each look at the clock.
type latePace struct {
	clock.Pace
	now time.Time
}

func (p *latePace) Now() time.Time {
	p.now = p.now.Add(time.Second)
	return p.now
}

type idleTransport struct{ Transport }

func (idleTransport) Latencies() (connecting, answering time.Duration) { return 0, 0 }

// TestLateSlot checks that a goroutine that gets its slot late can pass it on.
func TestLateSlot(t *testing.T) {
	r := newAt(Config{Desired: cache.NewDesired(), Transport: idleTransport{}}, &latePace{Pace: clock.Real()})
	r.free--
	s := r.takeSlot(t.Context(), &job{effect: machine.Ask{First: true}})
	if next := r.passOn(t.Context(), s); next != nil || r.free != r.slots {
		t.Errorf("%d of %d slots are free, and the next job is %v", r.free, r.slots, next)
	}
}
