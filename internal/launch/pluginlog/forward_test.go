package pluginlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a Handler that keeps messages; it waits for permission if it has a gate.
type recorder struct {
	discard
	mu   *sync.Mutex
	got  *[]slog.Record
	gate chan struct{}
}

func newRecorder(gate chan struct{}) recorder {
	return recorder{mu: new(sync.Mutex), got: new([]slog.Record), gate: gate}
}

func (h recorder) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (h recorder) WithAttrs([]slog.Attr) slog.Handler               { return h }
func (h recorder) Handle(_ context.Context, r slog.Record) error {
	if h.gate != nil {
		<-h.gate
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	*h.got = append(*h.got, r)
	return nil
}

func TestForward(t *testing.T) {
	h := newRecorder(nil)
	l := newLog(settings{Handler: h, Rate: -1, keep: 10 << 20})
	const total = 20_000
	for i := range total {
		write(l, fmt.Sprintf("{\"level\":\"warn\",\"msg\":\"%d\",\"k\":1}\n{\"level\":\"debug\",\"msg\":\"not enabled\"}\n", i))
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, r := range *h.got {
		if r.Message != fmt.Sprint(i) || r.Level != slog.LevelWarn || r.NumAttrs() != 1 {
			t.Fatalf("record %d is %v", i, r)
		}
	}
	if len(*h.got) != total || l.missed != 0 {
		t.Errorf("%d forwarded of %d, %+v", len(*h.got), total, l.Stats())
	}
}

// TestForwardOnce: the goroutine that forwards goes on where the one before it ended.
func TestForwardOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRecorder(nil)
		l := newLog(settings{Handler: h})
		for i := range 3 {
			write(l, "line\n")
			synctest.Wait()
			if len(*h.got) != i+1 {
				t.Errorf("%d records after %d lines", len(*h.got), i+1)
			}
		}
		l.Close(t.Context())
	})
}

// TestStuckHandler: a Handler that does not return delays nobody, costs no memory, and is told what it missed.
func TestStuckHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		h := newRecorder(gate)
		l := newLog(settings{Handler: h, Rate: -1, keep: 10_000})
		const total = 10_000
		for i := range total {
			write(l, fmt.Sprintln(i))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		close(gate)
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		missed, told := 0, 0
		for _, r := range *h.got {
			r.Attrs(func(a slog.Attr) bool {
				told++
				missed += int(a.Value.Int64())
				return true
			})
		}
		if forwarded := len(*h.got) - told; missed == 0 || forwarded+missed != total || l.missed != uint64(missed) {
			t.Errorf("%d forwarded, %d told missed, %+v", forwarded, missed, l.Stats())
		}
		if (*h.got)[len(*h.got)-1].Message != fmt.Sprint(total-1) {
			t.Errorf("the last one is %v", (*h.got)[len(*h.got)-1])
		}
	})
}

// bubble runs f in a bubble of its own and hands a failure of the property on to it.
