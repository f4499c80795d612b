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

// stalledPace has one timer, which the test fires.
type stalledPace struct {
	clock.Pace
	now  time.Time
	d    time.Duration
	fire func()
}

func (p *stalledPace) Now() time.Time { return p.now }

func (p *stalledPace) AfterFunc(d time.Duration, f func()) (stop func()) {
	p.d, p.fire = d, f
	return func() {}
}

// TestStalledSlot checks that the time in which this process does not run counts for no slot, unless that happens again and again.
func TestStalledSlot(t *testing.T) {
	for stall, firings := range map[time.Duration]int{0: 1, slotHold: 1, slotHold + 1: maxStalls + 1, time.Second: maxStalls + 1} {
		pace := &stalledPace{Pace: clock.Real()}
		r := newAt(Config{Desired: cache.NewDesired(), Transport: idleTransport{}}, pace)
		r.free--
		s := r.takeSlot(t.Context(), &job{effect: machine.Ask{First: true}})
		n := 0
		for ; !s.returned; n++ {
			pace.now = pace.now.Add(pace.d + stall)
			pace.fire()
		}
		if n != firings {
			t.Errorf("with stalls of %v, the slot is returned when its timer fires for the %dth time, want %d", stall, n, firings)
		}
	}
}
