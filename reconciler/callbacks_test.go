package reconciler_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// exiting is a handler that ends its goroutine in RegisterPlugin, as one does that calls FailNow of a test.
type exiting struct{ panicking }

func (exiting) RegisterPlugin(string, string, []string, *time.Duration) error {
	runtime.Goexit()
	return nil
}

// TestCallbacks checks that callbacks which do not return refuse one plugin, and no other waits for them.
func TestCallbacks(t *testing.T) {
	bubble(t, "the handler ends its goroutine", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.r.SetHandler("P", exiting{})
		w.serve("/a", "", &plugin{info: reconciler.Info{Type: "P", Name: "foo", Versions: []string{"v1"}}})
		w.expect("event refused foo",
			"told foo false: plugin registration failed: the handler ended its goroutine in RegisterPlugin instead of returning")
		w.serve("/b", "foo", nil)
		w.expectCalls("validate foo /b.api", "register foo /b.api")
	})
	for _, role := range []string{"a/b", "a\x1b"} {
		bubble(t, fmt.Sprintf("the role %q", role), reconciler.Config{}, func(t *testing.T, w *world) {
			w.r.SetHandler("T", finder{w.handler, cache.Registration{Roles: []string{role}}})
			w.serve("/a", "foo", nil)
			w.expectCalls("validate foo /a.api", "register foo /a.api", "deregister foo")
			if s := w.status("/a"); s.State != reconciler.StateRefused {
				t.Errorf("the plugin is %+v", s)
			}
		})
	}
	for name, callback := range map[string]func(){"panics": func() { panic("oops") }, "ends its goroutine": runtime.Goexit} {
		bubble(t, "Admit "+name, reconciler.Config{Admit: func(context.Context, reconciler.Instance) error {
			callback()
			return nil
		}}, func(t *testing.T, w *world) {
			w.serve("/a", "foo", nil)
			if s := w.status("/a"); s.State != reconciler.StateRefused {
				t.Errorf("the plugin is %+v", s)
			}
		})
		bubble(t, "ClientTimeout "+name, reconciler.Config{ClientTimeout: func(string, string) *time.Duration {
			callback()
			return nil
		}}, func(t *testing.T, w *world) {
			w.serve("/a", "foo", nil)
			if s := w.status("/a"); s.State != reconciler.StateRefused {
				t.Errorf("the plugin is %+v", s)
			}
		})
	}
}
