package patchbay

import (
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// Observer sees what a [Runtime] does, for metrics and traces. Its functions may be nil. They are called by several goroutines at once and
// with locks held: they must neither block nor call the Runtime.
type Observer struct {
	// Event is told every event, before its subscribers are.
	Event func(reconciler.Event)
	// Attempt is told how each attempt to register a plugin ended.
	Attempt func(reconciler.Attempt)
	// Refused is told whenever a directory, a socket, a process or a claim of a plugin is refused because it is not trusted.
	Refused func(trust.Reason)
	// FileEventsLost is told whenever the system lost file events of the plugin directories, for which a scan makes up.
	FileEventsLost func()
	// Resync is told whenever a subscriber of events, of the Runtime or of its registry, was too slow and has to list the plugins again.
	Resync func()
	// Dispense is told the outcome of every DispensePlugin and Conn of the registry.
	Dispense func(pluginType string, err error)
	// Tracer traces attempts to register plugins; nil for none.
	Tracer trace.Tracer
	// DialOptions are those of the connections to plugins that the registry shares: stats handlers and interceptors for what is called on
	// them.
	DialOptions []grpc.DialOption
}

// registryOptions returns the options of a registry that is observed.
func (o Observer) registryOptions() []dynamicplugins.Option {
	var options []dynamicplugins.Option
	if len(o.DialOptions) > 0 {
		options = append(options, dynamicplugins.WithDialOptions(o.DialOptions...))
	}
	if o.Dispense != nil || o.Resync != nil {
		options = append(options, dynamicplugins.WithObserver(dynamicplugins.Observer{Dispense: o.Dispense, Resync: o.Resync}))
	}
	return options
}
