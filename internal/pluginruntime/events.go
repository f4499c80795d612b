package pluginruntime

import (
	"context"

	"github.com/patchbay-dev/patchbay/plugin"
)

// LastEvents returns the last n events, oldest first, as far as they are kept in memory: at most 4,096.
func (rt *Runtime) LastEvents(n int) []plugin.Event { return rt.journal.Last(n) }

// PastEvents returns all events that are kept, oldest first: those in memory and, with Config.EventsPath, the older ones of that file,
// which it reads: up to 8 MiB. The error says why the file could not be read; those in memory are returned nevertheless.
func (rt *Runtime) PastEvents() ([]plugin.Event, error) { return rt.journal.All() }

// LaunchedAs returns the type and name with which a launched plugin is registered, or was last, if an event recorded that.
func (rt *Runtime) LaunchedAs(name string) (plugin.Name, bool) { return rt.journal.LaunchedAs(name) }

// Events returns a channel with the last tail events, as far as they are kept, followed by new ones in order. The channel is closed when
// ctx ends, or after the last event once the Runtime has stopped. A reader that leaves more than 8,192 events unread gets one event of kind
// [plugin.EventResync] instead of them. The Runtime also logs each event to Config.Logger: a host that logs what it receives here logs it
// twice.
func (rt *Runtime) Events(ctx context.Context, tail int) <-chan plugin.Event {
	return rt.journal.Events(ctx, tail)
}

// Publish adds an event of the host's own to the sequence of events. It may be called at any time and does not block; after the Runtime has
// stopped it does nothing. It does not log the event; that is up to the host.
func (rt *Runtime) Publish(e plugin.Event) { rt.journal.Publish(e) }
