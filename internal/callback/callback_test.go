package callback

import (
	"bytes"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
)

func TestCall(t *testing.T) {
	failure := errors.New("failure")
	for want, do := range map[string]func() error{
		"":                   func() error { return nil },
		"failure":            func() error { return failure },
		"it panicked: oops":  func() error { panic("oops") },
		"it panicked: panic": func() error { panic(nil) }, //nolint:govet // the case itself
		"it ended its goroutine instead of returning": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(want, func(t *testing.T) {
			err := Call(do)
			if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("the error is %v", err)
			}
			if e, ok := errors.AsType[*Error](err); ok && e.Panic != nil && !strings.Contains(e.Stack, "callback_test.go") {
				t.Errorf("the stack is %s", e.Stack)
			}
		})
	}
}

func TestObserver(t *testing.T) {
	if Observer[int](nil, "Event", nil) != nil {
		t.Error("there is an observer")
	}
	var log bytes.Buffer
	observe := Observer(slog.New(slog.NewTextHandler(&log, nil)), "Event", func(n int) {
		if n > 0 {
			runtime.Goexit()
		}
	})
	observe(0)
	observe(1)
	if want := `msg="an observer did not return" observer=Event error="it ended its goroutine instead of returning"`; strings.Count(log.String(), want) != 1 {
		t.Errorf("the log is %s", &log)
	}
}
