package patchbay

import (
	"context"

	"github.com/patchbay-dev/patchbay/internal/journal"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
)

// Event says what happened to one plugin: it is a [reconciler.Event] with a field Seq uint64, which numbers the events of one Runtime
// without gaps, from 1 or from where those in Config.EventsPath end.
type Event = journal.Event

// EventResync is the kind of the event that replaces those which a subscriber was too slow to read; it should list [Runtime.Plugins] again.
const EventResync = journal.Resync

// LastEvents returns the last n events, oldest first, as far as they are kept in memory: at most 4,096.
func (rt *Runtime) LastEvents(n int) []Event { return rt.journal.Last(n) }

// PastEvents returns all events that are kept, oldest first: those in memory and, with Config.EventsPath, the older ones of that file,
// which it reads: up to 8 MiB. The error says why the file could not be read; those in memory are returned nevertheless.
func (rt *Runtime) PastEvents() ([]Event, error) { return rt.journal.All() }

// LaunchedAs returns the type and name as which a launched plugin is registered, or was last, as far as the events that are kept tell.
func (rt *Runtime) LaunchedAs(name string) (registered PluginName, known bool) {
	registered.Type, registered.Name, known = rt.journal.LaunchedAs(name)
	return registered, known
}

// Events returns a channel with the last tail events, as far as they are kept, followed by new ones in order. The channel is closed when
// ctx ends, or after the last event once the Runtime has stopped. A reader that leaves more than 8,192 events unread gets one event of
// kind [EventResync] instead of them. The Runtime also logs each event to Config.Logger: a host that logs what it receives here logs it
// twice.
func (rt *Runtime) Events(ctx context.Context, tail int) <-chan Event {
	return rt.journal.Events(ctx, tail)
}

// Publish adds an event of the host's own to the sequence of events. It may be called at any time and does not block; after the Runtime has
// stopped it does nothing. It does not log the event; that is up to the host.
func (rt *Runtime) Publish(e reconciler.Event) { rt.journal.Publish(e) }
