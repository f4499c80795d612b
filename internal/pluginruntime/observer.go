package pluginruntime

import (
	"log/slog"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"

	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Observer is a patchbay.Observer.
type Observer struct {
	Event          func(plugin.Event)
	Attempt        func(plugin.Attempt)
	Refused        func(trust.Reason)
	FileEventsLost func()
	Resync         func()
	Dispense       func(pluginType string, err error)
	CallsLimited   func(reason string)
	Tracer         trace.Tracer
	StatsHandlers  []stats.Handler
}

// guarded returns an observer that logs panics of its functions, except of Dispense, which runs in the caller of DispensePlugin.
func (o Observer) guarded(log *slog.Logger) Observer {
	o.Event = callback.Observer(log, "Event", o.Event)
	o.Attempt = callback.Observer(log, "Attempt", o.Attempt)
	o.Refused = callback.Observer(log, "Refused", o.Refused)
	o.CallsLimited = callback.Observer(log, "CallsLimited", o.CallsLimited)
	o.FileEventsLost = guardedCall(log, "FileEventsLost", o.FileEventsLost)
	o.Resync = guardedCall(log, "Resync", o.Resync)
	return o
}

// guardedCall is [callback.Observer] for a function without an argument.
func guardedCall(log *slog.Logger, name string, call func()) func() {
	if call == nil {
		return nil
	}
	observe := callback.Observer(log, name, func(struct{}) { call() })
	return func() { observe(struct{}{}) }
}
