package patchbay

import (
	"context"

	"github.com/patchbay-dev/patchbay/internal/journal"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Event says what happened to one plugin: it is a [reconciler.Event] with a field Seq uint64, which numbers the events of one Runtime
// without gaps, from 1 or from where those in Config.EventsPath end.
type Event = journal.Event

// EventResync is the kind of the event that takes the place of events which a subscriber was too slow to read: it should look at
// [Runtime.Plugins] anew.
const EventResync = journal.Resync

// LastEvents returns the last n events, oldest first, as far as they are kept: at most 4,096.
func (rt *Runtime) LastEvents(n int) []Event { return rt.journal.Last(n) }

// Events returns a channel of events, in order: the last tail ones, as far as they are kept, and then what happens until ctx ends or
// the Runtime has ended, when the channel is closed. A reader may take its time; one that leaves more than 8,192 events unread gets one
// event of kind [EventResync] in their place.
func (rt *Runtime) Events(ctx context.Context, tail int) <-chan Event {
	return rt.journal.Events(ctx, tail)
}

// Publish puts an event of the host's own into the order of events, with the next number. It may be called at any time and does not block;
// after the Runtime has ended it does nothing. It logs nothing: the host knows best how to say it in its log.
func (rt *Runtime) Publish(e reconciler.Event) { rt.journal.Publish(e) }
