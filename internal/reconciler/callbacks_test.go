package reconciler_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
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
		w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "P", Name: "foo", Versions: []string{"v1"}}})
		w.expect("event refused foo",
			"told foo false: plugin registration failed: the handler ended its goroutine in RegisterPlugin instead of returning")
		w.serve("/b", "foo", nil)
		w.expectCalls("validate foo /b.api", "register foo /b.api")
	})
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	bubble(t, "the spans say that the handler ended its goroutine", reconciler.Config{Tracer: tracer}, func(t *testing.T, w *world) {
		w.r.SetHandler("P", exiting{})
		w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "P", Name: "foo", Versions: []string{"v1"}}})
		w.status("/a")
		for _, s := range spans.Ended() {
			if s.Name() == "register" && s.Status().Code != codes.Error {
				t.Errorf("the registration is traced as %+v", s.Status())
			}
		}
	})
	for _, role := range []string{"a/b", "a\x1b"} {
		bubble(t, fmt.Sprintf("the role %q", role), reconciler.Config{}, func(t *testing.T, w *world) {
			w.r.SetHandler("T", finder{w.handler, plugin.Registration{Roles: []string{role}}})
			w.serve("/a", "foo", nil)
			w.expectCalls("validate foo /a.api", "register foo /a.api", "deregister foo")
			if s := w.status("/a"); s.State != plugin.StateRefused {
				t.Errorf("the plugin is %+v", s)
			}
		})
	}
	for name, callback := range map[string]func(){"panics": func() { panic("oops") }, "ends its goroutine": runtime.Goexit} {
		bubble(t, "Admit "+name, reconciler.Config{Admit: func(context.Context, plugin.Instance) error {
			callback()
			return nil
		}, Tracer: tracer}, func(t *testing.T, w *world) {
			w.serve("/a", "foo", nil)
			if s := w.status("/a"); s.State != plugin.StateRefused {
				t.Errorf("the plugin is %+v", s)
			}
			if !slices.ContainsFunc(spans.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "admit" && s.Status().Code == codes.Error }) {
				t.Error("the span of Admit has not ended with an error")
			}
			spans.Reset()
		})
		bubble(t, "ClientTimeout "+name, reconciler.Config{ClientTimeout: func(string, string) *time.Duration {
			callback()
			return nil
		}}, func(t *testing.T, w *world) {
			w.serve("/a", "foo", nil)
			if s := w.status("/a"); s.State != plugin.StateRefused {
				t.Errorf("the plugin is %+v", s)
			}
		})
	}
}

// TestRefuses checks that New refuses what cannot work, and that every method returns before Run, in use, after it, and with contexts that
// have ended.
func TestRefuses(t *testing.T) {
	for name, change := range map[string]func(*reconciler.Config){
		"no Desired":         func(c *reconciler.Config) { c.Desired = nil },
		"no Transport":       func(c *reconciler.Config) { c.Transport = nil },
		"Slots":              func(c *reconciler.Config) { c.Slots = -1 },
		"UnreachableGrace":   func(c *reconciler.Config) { c.UnreachableGrace = -1 },
		"a timeout":          func(c *reconciler.Config) { c.Timeouts.Dial = -1 },
		"a timeout of none":  func(c *reconciler.Config) { c.TypeTimeouts = map[string]plugin.Timeouts{"": {}} },
		"a negative bound":   func(c *reconciler.Config) { c.Bounds.Text = -1 },
		"a negative handler": func(c *reconciler.Config) { c.Timeouts.Handler = -1 },
	} {
		cfg := reconciler.Config{Desired: cache.NewDesired(), Transport: deaf{}}
		change(&cfg)
		if !panics(func() { reconciler.New(cfg) }) {
			t.Errorf("New accepted %s", name)
		}
	}
	r := reconciler.New(reconciler.Config{Desired: cache.NewDesired(), Transport: deaf{}})
	if !panics(func() { r.SetHandler("T", nil) }) || !panics(func() { r.SetHandler("T/x", &recorder{}) }) {
		t.Error("SetHandler accepted what is no handler, or no type")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	all := func(state string) {
		if err := r.SetTimeouts(plugin.Timeouts{Notify: -1}, nil); err == nil {
			t.Errorf("%s, SetTimeouts accepted a negative timeout", state)
		}
		if err := r.SetTimeouts(plugin.Timeouts{Notify: time.Second}, nil); err != nil {
			t.Error(err)
		}
		r.RemoveHandler("none")
		r.RemoveHandler("")
		r.Reconsider()
		r.MarkComplete()
		if _, kept := r.Reservation(plugin.Name{}); kept || r.Retry("", "") || len(r.Plugins())+len(r.PluginsNamed(""))+len(r.Refusals()) > 0 {
			t.Errorf("%s there is something", state)
		}
		if err := r.ReleaseName(ended, plugin.Name{}); err == nil {
			t.Errorf("%s, ReleaseName of nothing: no error", state)
		}
	}
	all("before Run")
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	if err := r.Check(t.Context()); err != nil {
		t.Error(err)
	}
	all("in use")
	if err := r.Run(ended); err == nil {
		t.Error("a second Run was accepted")
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	all("after Run")
	if err := r.Run(t.Context()); err == nil {
		t.Error("a Run after the first was accepted")
	}
	if err := r.Check(ended); err == nil {
		t.Error("a reconciler that has ended answers")
	}
}

// deaf is a Transport that reaches nothing, and is never used.
type deaf struct{ reconciler.Transport }

func panics(do func()) (did bool) {
	defer func() { did = recover() != nil }()
	do()
	return false
}
