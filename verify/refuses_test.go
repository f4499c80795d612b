//go:build linux

package verify

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
)

type writerFunc func()

func (w writerFunc) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

// TestRefuses checks what TestUsage does not: contexts that have ended, and an Output that does not return from Write.
func TestRefuses(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, target := range []Target{{Socket: "none"}, {Command: []string{"/bin/true"}}} {
		report, err := Run(ended, target, Options{})
		if !errors.Is(err, context.Canceled) || !report.Incomplete || len(report.Results) > 0 {
			t.Errorf("%v with a context that has ended: %+v, %v", target, report, err)
		}
	}
	for name, write := range map[string]writerFunc{"panics": func() { panic("oops") }, "ends its goroutine": runtime.Goexit} {
		report, err := Run(t.Context(), Target{Command: []string{"/bin/echo", "hello"}}, Options{Output: write, Rules: []string{"REG001"}})
		if err != nil || len(report.Results) != 1 || report.OK(false) {
			t.Errorf("an Output that %s: %+v, %v", name, report, err)
		}
	}
	if (Report{}).Count("none") != 0 || (Report{}).WriteJUnit(io.Discard, true) != nil {
		t.Error("the zero Report counts something, or cannot be written")
	}
}
