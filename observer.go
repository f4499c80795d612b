package patchbay

import (
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Observer watches a [Runtime] for metrics and traces. Its functions may be nil. They are called concurrently and with locks held, so they
// must not block or call the Runtime. A panic is logged and does not propagate, except that a panic of Dispense reaches the caller of
// DispensePlugin.
type Observer struct {
	// Event receives every event, before subscribers do.
	Event func(plugin.Event)
	// Attempt receives the outcome of each registration attempt.
	Attempt func(plugin.Attempt)
	// Refused is called when a directory, socket, process or claim of a plugin is refused as untrusted.
	Refused func(trust.Reason)
	// FileEventsLost is called when the kernel drops file events of the plugin directories; a scan then finds the changes.
	FileEventsLost func()
	// Resync is called when a subscriber of the Runtime's or the registry's events was too slow and has to list the plugins again.
	Resync func()
	// Dispense receives the outcome of every DispensePlugin and Conn of the registry.
	Dispense func(pluginType string, err error)
	// CallsLimited is called when calls to launched plugins that start on demand or are upgraded by handover are slowed down because too many
	// bytes wait in memory (reasons "user" and "total"), or refused because too many are in progress ("userCalls" and "calls").
	CallsLimited func(reason string)
	// Tracer traces attempts to register plugins; nil for none.
	Tracer trace.Tracer
	// StatsHandlers receive the calls on the connections to plugins that the registry shares; see [dynamicplugins.WithStatsHandlers].
	StatsHandlers []stats.Handler
}
