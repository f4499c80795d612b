package pendingcalls

import (
	"errors"
	"runtime"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCounter(t *testing.T) {
	var none *Counter
	none.Mark()
	none.Passed()
	none.Begin().End(nil)
	if none.Marked() || none.Answers() != 0 {
		t.Error("a nil Counter counts")
	}
	c := At("/socket")
	if At("/socket") != c || At("/other") == c {
		t.Error("a socket does not have its own Counter")
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

// TestPassed: a call that waits while the plugin answers checks does not keep it from that.
func TestPassed(t *testing.T) {
	c := new(Counter)
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

// TestCounterIsForgotten: a socket that nobody uses costs nothing.
func TestCounterIsForgotten(t *testing.T) {
	path := t.TempDir()
	At(path).Begin().End(nil)
	known := func() bool {
		counters.Lock()
		defer counters.Unlock()
		_, is := counters.at[path]
		return is
	}
	for known() {
		runtime.GC()
		runtime.Gosched()
	}
}
