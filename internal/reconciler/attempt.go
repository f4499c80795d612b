package reconciler

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// attempt is an attempt to register an instance, in progress unless began is zero. Guarded by Reconciler.mu.
type attempt struct {
	began time.Time
	span  trace.Span // nil without a tracer
}

// beginAttempt begins an attempt on an instance, unless one is in progress. The first attempt begins when the socket is found; later ones
// belong to the same trace. mu is held.
func (r *Reconciler) beginAttempt(e machine.Begin) {
	res := r.resourcesOf(e.Ref)
	if !res.attempt.began.IsZero() {
		return
	}
	res.attempt.began = e.At
	if r.cfg.Tracer == nil {
		return
	}
	ctx := trace.ContextWithSpanContext(context.Background(), res.trace)
	// An exporter drops all spans of a batch if a text is not valid UTF-8.
	_, res.attempt.span = r.cfg.Tracer.Start(ctx, "register plugin", trace.WithTimestamp(e.At),
		trace.WithAttributes(attribute.String("patchbay.socket", untrusted.Valid(e.Path))))
	if !res.trace.IsValid() {
		res.trace = res.attempt.span.SpanContext()
	}
}

// endAttempt ends the attempt on an instance, if one is in progress. mu is held.
func (r *Reconciler) endAttempt(e machine.End) {
	res := r.resourcesOf(e.Ref)
	a := res.attempt
	res.attempt = attempt{}
	if e.Result == plugin.ResultRegistered || e.Result == plugin.ResultGone {
		res.trace = trace.SpanContext{} // the next attempt begins another trace
	}
	if a.began.IsZero() {
		return
	}
	if r.cfg.Attempted != nil {
		r.cfg.Attempted(plugin.Attempt{Type: e.Named.Type, Name: e.Named.Name, Result: e.Result, Duration: max(r.pace.Now().Sub(a.began), 0)})
	}
	if a.span == nil {
		return
	}
	a.span.SetAttributes(attribute.String("patchbay.plugin.type", e.Named.Type),
		attribute.String("patchbay.plugin.name", e.Named.Name), attribute.String("patchbay.result", string(e.Result)))
	if e.Failure != nil {
		a.span.SetStatus(codes.Error, untrusted.Valid(e.Failure.Error()))
	}
	a.span.End()
}

// traced returns a context with the span of the attempt. mu is held.
func (res *resources) traced(ctx context.Context) context.Context {
	if res.attempt.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, res.attempt.span)
}

// trace begins the span of one step of an attempt. The caller calls done with the step's error.
func (r *Reconciler) trace(ctx context.Context, name string) (_ context.Context, done func(error)) {
	if r.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := r.cfg.Tracer.Start(ctx, name)
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, untrusted.Valid(err.Error()))
		}
		span.End()
	}
}
