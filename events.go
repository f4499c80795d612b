package patchbay

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/feed"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Event says what happened to one plugin.
type Event struct {
	// Seq numbers the events of one Runtime from 1, without gaps.
	Seq uint64
	reconciler.Event
}

// EventResync is the kind of the event that takes the place of events which a subscriber was too slow to read: it should look at
// [Runtime.Plugins] anew.
const EventResync reconciler.EventKind = "resync"

// eventHistory is the number of past events that are kept.
const eventHistory = 4096

// LastEvents returns the last n events, oldest first, as far as they are kept: at most 4,096.
func (rt *Runtime) LastEvents(n int) []Event { return rt.events.feed.Last(n) }

// Events returns a channel of events, in order: the last tail ones, as far as they are kept, and then what happens until ctx ends or
// the Runtime has ended, when the channel is closed. A reader may take its time; one that leaves more than 8,192 events unread gets one
// event of kind [EventResync] in their place.
func (rt *Runtime) Events(ctx context.Context, tail int) <-chan Event {
	return rt.events.feed.Replay(ctx, tail)
}

// Publish puts an event of the host's own into the order of events, with the next number. It may be called at any time and does not block;
// after the Runtime has ended it does nothing. It logs nothing: the host knows best how to say it in its log.
func (rt *Runtime) Publish(e reconciler.Event) { rt.events.publish(e) }

// eventLog numbers events and passes them on.
type eventLog struct {
	feed  *feed.Feed[Event]
	event func(reconciler.Event) // may be nil
	log   *slog.Logger

	mu  sync.Mutex // held over a publication, so that the events are in the order of their numbers
	seq uint64     // of the last event
}

func newEventLog(observer Observer, log *slog.Logger) *eventLog {
	return &eventLog{event: observer.Event, log: log, feed: feed.New(feed.Config[Event]{
		History: eventHistory,
		Resync: func(_ string, commit func(Event)) {
			if observer.Resync != nil {
				observer.Resync()
			}
			commit(Event{Event: reconciler.Event{
				Time: time.Now(), Kind: EventResync, Message: "events were missed because they were not read in time; list the plugins anew",
			}})
		},
	})}
}

// observe publishes an event of the Runtime's own, and logs it: each is one line.
func (l *eventLog) observe(e reconciler.Event) {
	l.publish(e)
	level := slog.LevelInfo
	if troubling[e.Kind] {
		level = slog.LevelWarn
	}
	attributes := []slog.Attr{slog.String("event", string(e.Kind))}
	for _, a := range []struct{ key, value string }{
		{"type", e.Type}, {"plugin", e.Name}, {"instance", e.Instance}, {"endpoint", e.Endpoint}, {"socket", e.SocketPath}, {"reason", e.Message},
	} {
		if a.value != "" {
			attributes = append(attributes, slog.String(a.key, a.value))
		}
	}
	subject := "plugin"
	if e.Kind == pluginwatcher.EventDegraded || e.Kind == pluginwatcher.EventRecovered {
		subject = "plugin discovery"
	}
	l.log.LogAttrs(context.Background(), level, subject+" "+string(e.Kind), attributes...)
}

// troubling are the kinds of events at which an operator may have to look. All others tell of the ordinary life of plugins.
var troubling = map[reconciler.EventKind]bool{
	reconciler.EventRefused: true, reconciler.EventFailed: true, reconciler.EventUnreachable: true, reconciler.EventUnlinked: true,
	pluginwatcher.EventDegraded:                      true,
	reconciler.EventKind(host.EventDenied):           true,
	reconciler.EventKind(host.EventLeftover):         true,
	reconciler.EventKind(launcher.EventUnresponsive): true,
	reconciler.EventKind(launcher.EventUnhealthy):    true,
}

func (l *eventLog) publish(e reconciler.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.event != nil {
		l.event(e)
	}
	l.seq++
	l.feed.Publish("", Event{Seq: l.seq, Event: e})
}

func (l *eventLog) close() { l.feed.Close() }
