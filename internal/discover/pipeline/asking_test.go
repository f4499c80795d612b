package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// isAsked reports whether a plugin of a user may be asked without waiting.
func isAsked(t *testing.T, a *asking, uid uint32, first bool) (*place, bool) {
	t.Helper()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := a.begin(ended, uid, first)
	if err != nil && (!errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "neither registered nor refused yet")) {
		t.Errorf("the error is %v", err)
	}
	return p, err == nil
}

// fill takes places, in order.
func fill(t *testing.T, a *asking, users ...uint32) (places []*place) {
	t.Helper()
	for i, uid := range users {
		p, ok := isAsked(t, a, uid, false)
		if !ok {
			t.Fatalf("there is no room for plugin %d", i)
		}
		places = append(places, p)
	}
	return places
}

func TestAskingIsBounded(t *testing.T) {
	a := newAsking(3, 5)
	places := fill(t, a, 7, 7, 7, 8, 8)
	for uid, what := range map[uint32]string{7: "one more of a user", 9: "one more of all"} {
		if _, ok := isAsked(t, a, uid, false); ok {
			t.Errorf("%s is asked", what)
		}
	}
	places[4].end()
	places[4].end() // again
	if _, ok := isAsked(t, a, 9, false); !ok {
		t.Error("another user's plugin is not asked when one is settled")
	}
	if _, ok := isAsked(t, a, 9, false); ok {
		t.Error("one place was given up twice")
	}
	waits := a.enter(7, false)
	places[0].end()
	if !waits.isGiven() {
		t.Error("a plugin that waited is not asked")
	}
	if p, ok := isAsked(t, newAsking(0, 0), 7, false); !ok || p != nil {
		t.Error("there is a bound without a number")
	}
}

// TestNewcomerIsAskedNext: the plugin that gives way is the one that has been asked for the longest time and has not answered, of the user
// who has most.
func TestNewcomerIsAskedNext(t *testing.T) {
	for name, tc := range map[string]struct {
		has      []uint32
		answered []int
		of       uint32
		yields   int // -1: none
	}{
		"its own user's oldest":               {[]uint32{7, 7, 7, 8}, nil, 7, 0},
		"not one that has answered":           {[]uint32{7, 7, 7, 8}, []int{0}, 7, 1},
		"the oldest of who has most":          {[]uint32{8, 7, 7, 7, 8}, nil, 9, 1},
		"its own among equals":                {[]uint32{8, 8, 7, 7, 9}, nil, 7, 2},
		"none of who has less":                {[]uint32{8, 8, 7, 7, 7}, []int{2, 3, 4}, 7, -1},
		"none if all have answered":           {[]uint32{8, 8, 7, 7, 7}, []int{0, 1, 2, 3, 4}, 9, -1},
		"the oldest of who has most of those": {[]uint32{8, 8, 7, 7, 7}, []int{2, 3, 4}, 9, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAsking(3, 5)
			places := fill(t, a, tc.has...)
			asked := make([]context.Context, len(places))
			for i, p := range places {
				asked[i], _ = p.ask(t.Context())
			}
			for _, i := range tc.answered {
				_, answered := places[i].ask(t.Context())
				answered()
			}
			again, newcomer := a.enter(tc.of, false), a.enter(tc.of, true)
			time.Sleep(overdueMost)
			synctest.Wait()
			for i := range places {
				if got, want := errors.Is(context.Cause(asked[i]), errPutOff), i == tc.yields; got != want {
					t.Errorf("%s: plugin %d gives way: %v; want %v", name, i, got, want)
				}
			}
			if newcomer.isGiven() {
				t.Errorf("%s: it is asked before the other one has closed its connection", name)
			}
			if tc.yields >= 0 {
				places = places[tc.yields : tc.yields+1]
			}
			for _, p := range places {
				if p.end(); newcomer.isGiven() {
					break
				}
				if again.isGiven() {
					t.Errorf("%s: what is asked again goes before what has just appeared", name)
				}
			}
			if !newcomer.isGiven() {
				t.Errorf("%s: it is not asked when the others are settled", name)
			}
		})
	}
}

// TestOverdue: a plugin is overdue after a multiple of what others take, so on a slow machine it has longer.
func TestOverdue(t *testing.T) {
	for name, tc := range map[string]struct{ connects, takes, overdue time.Duration }{
		"nobody has answered":               {0, 0, overdueMost},
		"others are quick":                  {0, time.Millisecond, overdueTimes * time.Millisecond},
		"the machine is slower":             {0, 10 * time.Millisecond, overdueTimes * 10 * time.Millisecond},
		"others are very slow":              {25 * time.Microsecond, time.Minute, overdueMost},
		"and the machine is 100 times, too": {2500 * time.Microsecond, time.Minute, overdueConnects * 2500 * time.Microsecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAsking(1, 1)
			a.measured(&a.connects, time.Now().Add(-tc.connects))
			if tc.takes > 0 {
				p := fill(t, a, 7)[0]
				began := time.Now()
				time.Sleep(tc.takes)
				a.measured(&a.answers, began)
				p.end()
			}
			fill(t, a, 7)[0].leavesWhen(t, func() { a.enter(7, true) }, tc.overdue, name)
		})
	}
}

// leavesWhen fails the test unless a plugin gives way to one that appears, a time after it has got its place.
func (p *place) leavesWhen(t *testing.T, appears func(), after time.Duration, name string) {
	t.Helper()
	began := time.Now()
	asked, _ := p.ask(t.Context())
	appears()
	<-asked.Done()
	if took := time.Since(began); took != after {
		t.Errorf("%s: it gives way after %v, want %v", name, took, after)
	}
}

// TestSlowAnswersCountLittle: one user's slow plugins do not make all others wait.
func TestSlowAnswersCountLittle(t *testing.T) {
	a := newAsking(1, 1)
	a.answers.Add(time.Millisecond)
	for range 8 {
		a.answers.Add(5 * time.Second)
	}
	a.answers.Add(time.Millisecond)
	if time.Duration(a.answers) != time.Millisecond {
		t.Errorf("quick ones take %v", time.Duration(a.answers))
	}
	a.answers.Add(65 * time.Millisecond)
	if time.Duration(a.answers) != 2*time.Millisecond {
		t.Errorf("after a slow one, quick ones take %v", time.Duration(a.answers))
	}
}

// TestPlaceIsNotLost: a newcomer that gives up before the plugin that gives way has closed its connection leaves the place to others.
func TestPlaceIsNotLost(t *testing.T) {
	synctest.Test(t, testPlaceIsNotLost)
}

func testPlaceIsNotLost(t *testing.T) {
	a := newAsking(1, 1)
	places := fill(t, a, 7)
	newcomer, waits := a.enter(7, true), a.enter(7, false)
	time.Sleep(overdueMost)
	synctest.Wait()
	newcomer.end()
	if waits.isGiven() {
		t.Error("two have the place")
	}
	if asked, _ := places[0].ask(t.Context()); !errors.Is(context.Cause(asked), errPutOff) {
		t.Errorf("a plugin that gave way before it was asked is asked, %v", context.Cause(asked))
	}
	places[0].end()
	if !waits.isGiven() {
		t.Error("the place is lost")
	}
	waits.end()
	if a.places.Sum() != 0 {
		t.Errorf("%d places are taken", a.places.Sum())
	}
}
