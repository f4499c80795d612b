package reconciler

import (
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
)

// TestNext states what a lane does in every kind of present state.
func TestNext(t *testing.T) {
	h, other := &handler{}, &handler{}
	conn := struct{ Conn }{}
	in := func(state State) *instance { return &instance{state: state} }
	ready := func() *instance { return &instance{state: StateWaiting, conn: conn} }
	gone := func() *instance { return &instance{state: StateRegistered, gone: true} }

	held := in(StateRegistered)
	heldGone := gone()
	replacedBy := func(r *instance) *instance {
		replaced := gone()
		replaced.replacement = r
		r.replaces = []*instance{replaced}
		return replaced
	}
	deciding := func() *instance { return &instance{state: StateConnecting, asking: true, deciding: true} }
	asking := func() *instance { return &instance{state: StateConnecting, asking: true} }

	for name, test := range map[string]struct {
		held    *instance
		members []*instance // newest first; held is added by the test where it is not
		h       *handler
		want    action
		of      int // index of the member that it is about
	}{
		"empty":                                      {h: h, want: nothing},
		"a first instance":                           {members: []*instance{ready()}, h: h, want: register},
		"a newer one":                                {held: held, members: []*instance{ready(), held}, h: h, want: register},
		"an older one that answers late":             {held: held, members: []*instance{held, ready()}, h: h, want: standDown, of: 1},
		"a newer one that failed":                    {held: held, members: []*instance{in(StateBackoff), held}, h: h, want: nothing},
		"nothing held, the newer one failed":         {members: []*instance{in(StateBackoff), in(StateSuperseded)}, h: h, want: ask, of: 1},
		"nothing held, the newer one may answer":     {members: []*instance{deciding(), in(StateSuperseded)}, h: h, want: nothing},
		"nothing held, the newer one takes its time": {members: []*instance{asking(), in(StateSuperseded)}, h: h, want: ask, of: 1},
		"nothing held, the newest survivor is asked": {members: []*instance{in(StateSuperseded), in(StateSuperseded)}, h: h, want: ask},
		"the held one went":                          {held: heldGone, members: []*instance{heldGone, in(StateSuperseded)}, h: h, want: deregister},
		"a superseded one went":                      {held: held, members: []*instance{held, gone()}, h: h, want: drop, of: 1},
		"one went before its turn":                   {members: []*instance{gone()}, h: h, want: drop},
		"no handler":                                 {members: []*instance{ready()}, want: refuse},
		"the handler was removed":                    {held: held, members: []*instance{held}, want: deregister},
		"the handler was changed":                    {held: held, members: []*instance{ready(), held}, h: other, want: deregister, of: 1},
		"the handler was removed, a superseded one is recorded": {
			members: []*instance{{state: StateSuperseded, recorded: true}}, want: release},
		"the handler was removed, a restored one is not asked yet": {
			members: []*instance{{state: StateRestored, recorded: true, restored: &Instance{}}}, want: nothing},
		"the held one announces itself anew": {held: held, members: []*instance{{state: StateWaiting, conn: conn}}, h: h, want: register},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lane{members: test.members, held: test.held}
			if test.held != nil {
				l.heldBy = h
			}
			act, of := l.next(test.h)
			if act != test.want {
				t.Fatalf("action %d, want %d", act, test.want)
			}
			if act != nothing && of != test.members[test.of] {
				t.Errorf("it is about the wrong instance")
			}
		})
	}

	t.Run("the held one went and its replacement", func(t *testing.T) {
		r := deciding()
		replaced := replacedBy(r)
		l := &lane{members: []*instance{replaced}, held: replaced, heldBy: h}
		if act, _ := l.next(h); act != nothing {
			t.Errorf("may answer: action %d", act)
		}
		r.deciding, r.replaces = false, nil
		if act, _ := l.next(h); act != deregister {
			t.Errorf("does not answer: action %d", act)
		}
		r.conn = conn
		l.join(r)
		l.members = []*instance{r, replaced}
		if act, of := l.next(h); act != register || of != r {
			t.Errorf("answers: action %d", act)
		}
		l.members = []*instance{replaced, r}
		if act, of := l.next(h); act != register || of != r {
			t.Errorf("answers and is older: action %d", act)
		}
		r.deciding = true
		r.conn = nil
		if act, _ := l.next(h); act != deregister {
			t.Errorf("is asked again for another reason: action %d", act)
		}
		r.conn = conn
		r.lane = &lane{}
		l.members = []*instance{replaced}
		if act, _ := l.next(h); act != deregister {
			t.Errorf("answers under another name: action %d", act)
		}
	})
}

func TestBackoffGrows(t *testing.T) {
	for attempts, want := range map[int][2]float64{1: {0.08, 0.12}, 2: {0.16, 0.24}, 5: {1.28, 1.92}, 11: {81, 123}, 12: {96, 144}, 1000: {96, 144}} {
		for range 100 {
			if got := backoff(attempts).Seconds(); got < want[0] || got > want[1] {
				t.Fatalf("after %d attempts: %v s, want %v", attempts, got, want)
			}
		}
	}
}

// A moment that is compared with others carries a reading of the monotonic clock, which does not step.
func TestMomentsAreMonotonic(t *testing.T) {
	r := New(Config{Desired: cache.NewDesired()})
	r.mu.Lock()
	defer r.mu.Unlock()
	in := &instance{}
	in.set(StateBackoff)
	r.retryLater(in)
	defer in.rest()
	for name, moment := range map[string]time.Time{"next retry": in.nextRetry, "since": in.since} {
		if !strings.Contains(moment.String(), " m=") {
			t.Errorf("%s is %v", name, moment)
		}
	}
}
