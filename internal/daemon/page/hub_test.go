package page

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// counted is a source that counts who follows it.
type counted struct{ followed atomic.Int64 }

func (*counted) Plugins() []*patchbayv1.Plugin            { return nil }
func (*counted) Launched() []*patchbayv1.LaunchedPlugin   { return nil }
func (*counted) Conditions() []*patchbayv1.Condition      { return nil }
func (*counted) EventsOf(_, _ string) []*patchbayv1.Event { return nil }
func (*counted) LastEvents(int) []*patchbayv1.Event       { return nil }
func (*counted) About() (*patchbayv1.GetVersionResponse, *patchbayv1.GetConfigurationResponse) {
	return nil, nil
}
func (*counted) Fleet() Fleet { return nil }
func (*counted) Log(context.Context, string, int) (iter.Seq[*patchbayv1.LogRecord], error) {
	return nil, nil
}

func (c *counted) Events(ctx context.Context) <-chan *patchbayv1.Event {
	c.followed.Add(1)
	context.AfterFunc(ctx, func() { c.followed.Add(-1) })
	return make(chan *patchbayv1.Event)
}

// TestJoinBehindOneThatWasCutOff has a viewer join when the only other one was too slow and does not know yet that it was cut off.
func TestJoinBehindOneThatWasCutOff(t *testing.T) {
	source := &counted{}
	h := newHub(source)
	slow := h.join()
	h.mu.Lock()
	for range backlog {
		h.broadcast(message{event: "change"})
	}
	left := len(h.viewers)
	h.mu.Unlock()
	if left != 0 {
		t.Fatalf("%d viewers are left, want none", left)
	}
	second := h.join()
	if n := source.followed.Load(); n != 1 {
		t.Errorf("the source is followed %d times, want once", n)
	}
	h.leave(slow)
	if n := source.followed.Load(); n != 1 {
		t.Errorf("with one viewer the source is followed %d times, want once", n)
	}
	h.leave(second)
	for deadline := time.Now().Add(30 * time.Second); source.followed.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("without a viewer the source is followed")
		}
	}
}

// lostFleet is a fleet whose reader has lost etcd.
type lostFleet struct{ Fleet }

func (lostFleet) Nodes() []*patchbayv1.FleetNode { return nil }

func (lostFleet) Health() *patchbayv1.FleetHealth { return &patchbayv1.FleetHealth{Message: "away"} }

// TestLostFleet: viewers are shown how current the nodes are.
func TestLostFleet(t *testing.T) {
	h := newHub(&counted{})
	shown, _ := h.snapshot(lostFleet{})["fleet health"].(*patchbayv1.FleetHealth)
	if shown.GetMessage() != "away" || shown.GetCurrent() {
		t.Errorf("shown is %v", shown)
	}
	if _, ok := h.snapshot(nil)["fleet health"]; ok {
		t.Error("a node of no fleet has one")
	}
}
