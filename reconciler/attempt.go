package reconciler

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Result is how an attempt to register an instance ended.
type Result string

// The results of an attempt.
const (
	// ResultRegistered: it is registered.
	ResultRegistered Result = "registered"
	// ResultSuperseded: it answered, and rests behind a newer instance.
	ResultSuperseded Result = "superseded"
	// ResultRefused: it was told that it is not registered, or is not trusted enough to be told anything.
	ResultRefused Result = "refused"
	// ResultIgnored: there is no handler for it, and it was left alone.
	ResultIgnored Result = "ignored"
	// ResultFailed: something failed without the plugin being told of a refusal.
	ResultFailed Result = "failed"
	// ResultGone: it went meanwhile.
	ResultGone Result = "gone"
)

// Attempt says how one attempt to register an instance ended.
type Attempt struct {
	// Type and Name are what the plugin announced; empty if it did not come to that.
	Type, Name string
	Result     Result
	// Duration is how long it took: the first one from when the socket was seen.
	Duration time.Duration
}

// attempt is an attempt that is under way. The zero value is none. Guarded by Reconciler.mu.
type attempt struct {
	began time.Time
	span  trace.Span // nil if nothing is traced
}

// begin begins an attempt on an instance, unless one is under way. The first one begins when the socket was seen; those that follow belong
// to the same trace. mu is held.
func (r *Reconciler) begin(in *instance) {
	if !in.attempt.began.IsZero() {
		return
	}
	in.attempt.began = time.Now()
	if in.announced.Type == "" && in.attempts == 0 && !in.info.Timestamp.IsZero() {
		in.attempt.began = in.info.Timestamp
	}
	if r.cfg.Tracer == nil {
		return
	}
	ctx := trace.ContextWithSpanContext(context.Background(), in.trace)
	_, in.attempt.span = r.cfg.Tracer.Start(ctx, "register plugin", trace.WithTimestamp(in.attempt.began),
		trace.WithAttributes(attribute.String("patchbay.socket", spanText(in.info.SocketPath))))
	if !in.trace.IsValid() {
		in.trace = in.attempt.span.SpanContext()
	}
}

// end ends the attempt on an instance, if one is under way. mu is held.
func (r *Reconciler) end(in *instance, result Result, err error) {
	a := in.attempt
	in.attempt = attempt{}
	if a.began.IsZero() {
		return
	}
	if r.cfg.Attempted != nil {
		r.cfg.Attempted(Attempt{
			Type: in.announced.Type, Name: in.announced.Name, Result: result, Duration: max(time.Since(a.began), 0),
		})
	}
	if a.span == nil {
		return
	}
	a.span.SetAttributes(attribute.String("patchbay.plugin.type", in.announced.Type),
		attribute.String("patchbay.plugin.name", in.announced.Name), attribute.String("patchbay.result", string(result)))
	if err != nil {
		a.span.SetStatus(codes.Error, spanText(err.Error()))
	}
	a.span.End()
	if result == ResultRegistered {
		in.trace = trace.SpanContext{} // what comes after this is another story
	}
}

// spanText returns a text for a span. A path may have bytes that are not UTF-8, for which an exporter would drop all spans of a batch.
func spanText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// traced returns a context for the calls of the attempt on an instance. mu is held.
func (in *instance) traced(ctx context.Context) context.Context {
	if in.attempt.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, in.attempt.span)
}

// step traces one step of an attempt, whose context is ctx. The caller calls done with the step's error.
func (r *Reconciler) step(ctx context.Context, name string) (_ context.Context, done func(error)) {
	if r.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := r.cfg.Tracer.Start(ctx, name)
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, spanText(err.Error()))
		}
		span.End()
	}
}
