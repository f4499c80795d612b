package sdktest_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk/sdktest"
)

// failing is a test that has to fail.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Fatal(...any)          { f.failed = true; runtime.Goexit() }
func (f *failing) Fatalf(string, ...any) { f.failed = true; runtime.Goexit() }

// TestRefuses checks that a missing function fails the test, and that what may be called twice or late returns.
func TestRefuses(t *testing.T) {
	f := &failing{TB: t}
	host := sdktest.NewHost(f, "T")
	for name, do := range map[string]func(){
		"Start":        func() { host.Start(nil) },
		"Launch":       func() { host.Launch(nil) },
		"Registered":   func() { host.Registered("", "foo") },
		"Conn of none": func() { host.Conn("T", "") },
	} {
		f.failed = false
		done := make(chan struct{})
		go func() {
			defer close(done)
			do()
		}()
		if <-done; !f.failed {
			t.Errorf("%s was accepted", name)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p := host.Launch(func(context.Context) error { runtime.Goexit(); return nil })
	for range 2 {
		if p.Wait() == nil || p.Stop() == nil || p.CheckAdmission(t.Context(), plugin.Pin{}) == nil {
			t.Error("a plugin that did not return has no error")
		}
		if p.CheckAdmission(ended, plugin.Pin{}) == nil || len(p.Logs()) > 0 {
			t.Error("a plugin that did not return answers")
		}
		host.Refuse(nil)
		host.SetMetadata(plugin.Pin{})
		host.Restart()
	}
	if alone := host.Start(func(context.Context) error { return nil }); alone.CheckAdmission(t.Context(), plugin.Pin{}) == nil || alone.Stop() != nil {
		t.Error("a plugin that was not launched answers, or fails")
	}
}
