package h2proxy

import (
	"errors"
	"runtime"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestPending(t *testing.T) {
	var none *Pending
	none.Mark()
	none.Passed()
	none.Begin().End(nil)
	if none.Marked() || none.Answers() != 0 {
		t.Error("a nil Pending counts")
	}
	c := PendingAt("/socket")
	if PendingAt("/socket") != c || PendingAt("/other") == c {
		t.Error("a socket does not have its own Pending")
	}
	c.Mark()
	if c.Marked() {
		t.Error("a call is marked before there is one")
	}
	first := c.Begin()
	if c.Marked() {
		t.Error("a call that began after the mark is marked")
	}
	c.Mark()
	second := c.Begin()
	c.Mark() // the first one still waits
	second.End(status.Error(codes.DeadlineExceeded, ""))
	if !c.Marked() || c.Answers() != 0 {
		t.Errorf("marked: %t, %d answers, while the first call waits", c.Marked(), c.Answers())
	}
	first.End(nil)
	third := c.Begin()
	third.End(errors.New("broken"))
	if c.Marked() || c.Answers() != 2 {
		t.Errorf("marked: %t, %d answers, want 2", c.Marked(), c.Answers())
	}
}

// TestPendingPassed: a call that waits while the plugin answers checks does not keep it from that.
func TestPendingPassed(t *testing.T) {
	c := new(Pending)
	stream := c.Begin()
	for i := range maxPassed {
		if c.Mark(); !c.Marked() {
			t.Errorf("the call is not marked after %d checks", i)
		}
		c.Passed()
	}
	if c.Mark(); c.Marked() {
		t.Errorf("the call is marked after %d checks", maxPassed)
	}
	next := c.Begin()
	if c.Mark(); !c.Marked() {
		t.Error("a later call is not marked")
	}
	stream.End(nil)
	if next.End(nil); c.Marked() || c.Answers() != 2 {
		t.Errorf("marked: %t, %d answers, want 2", c.Marked(), c.Answers())
	}
}

// TestPendingIsForgotten: a socket that nobody uses costs nothing.
func TestPendingIsForgotten(t *testing.T) {
	path := t.TempDir()
	PendingAt(path).Begin().End(nil)
	known := func() bool {
		sockets.Lock()
		defer sockets.Unlock()
		_, is := sockets.calls[path]
		return is
	}
	for known() {
		runtime.GC()
		runtime.Gosched()
	}
}
