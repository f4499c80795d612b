package reconciler_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// traced is a handler that looks at the trace that it is called in.
type traced struct {
	*recorder
	in *trace.SpanContext
}

func (h traced) RegisterPluginContext(
	ctx context.Context, name, endpoint string, versions []string, timeout *time.Duration,
) (plugin.Registration, error) {
	*h.in = trace.SpanContextFromContext(ctx)
	return plugin.Registration{}, h.RegisterPlugin(name, endpoint, versions, timeout)
}

func TestAttemptsAreTraced(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	var attempts []plugin.Attempt
	cfg := reconciler.Config{
		Tracer:    sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test"),
		Attempted: func(a plugin.Attempt) { attempts = append(attempts, a) },
		Admit:     func(context.Context, plugin.Instance) error { return nil },
	}
	bubble(t, "a failure and a success are one trace", cfg, func(t *testing.T, w *world) {
		var seen trace.SpanContext
		w.r.SetHandler("T", traced{w.handler, &seen})
		began := time.Now()
		p := w.serve("/a", "foo", &fakePlugin{infoErr: errors.New("not yet"), infoTakes: time.Second})
		time.Sleep(1100 * time.Millisecond)
		w.mu.Lock()
		p.infoErr = nil
		w.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []plugin.Attempt{
			{Result: plugin.ResultFailed, Duration: time.Second},
			{Type: "T", Name: "foo", Result: plugin.ResultRegistered, Duration: time.Second},
		}
		if !slices.Equal(attempts, want) {
			t.Errorf("attempts %+v", attempts)
		}

		ended := spans.Ended()
		var names []string
		first := ended[2].SpanContext().TraceID()
		for _, s := range ended {
			names = append(names, s.Name())
			if s.SpanContext().TraceID() != first {
				t.Errorf("%s is in a trace of its own", s.Name())
			}
		}
		if !slices.Equal(names, []string{
			"connect", "GetInfo", "register plugin",
			"connect", "GetInfo", "validate", "admit", "register", "save", "notify", "register plugin",
		}) {
			t.Errorf("spans %v", names)
		}
		if s := ended[2]; !s.StartTime().Equal(began) || s.Status().Description != "GetInfo on /a failed: not yet" {
			t.Errorf("the failure began at %v and says %+v", s.StartTime(), s.Status())
		}
		if seen.SpanID() != ended[7].SpanContext().SpanID() {
			t.Errorf("the handler was called in span %v", seen)
		}

		// What happens to it later is a trace of its own.
		w.r.SetHandler("T", w.handler)
		time.Sleep(time.Minute)
		synctest.Wait()
		last := spans.Ended()[len(spans.Ended())-1]
		if last.Name() != "register plugin" || last.SpanContext().TraceID() == first {
			t.Errorf("the next attempt is %s in trace %v", last.Name(), last.SpanContext().TraceID())
		}
	})
}
