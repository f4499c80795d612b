// Package journal keeps what happens to plugins: it numbers the events, writes each as one line of the log, keeps the last of them, and
// hands them to subscribers in order. It decides nothing. With a file, the events outlive the process.
package journal

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/feed"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Event says what happened to one plugin.
type Event struct {
	// Seq numbers the events of one Runtime without gaps, from 1 or from where those in its file end.
	Seq uint64
	reconciler.Event
}

// Resync is the kind of the event that takes the place of those which a subscriber was too slow to read.
const Resync reconciler.EventKind = "resync"

// history is the number of past events that are kept.
const history = 4096

// Journal is safe for concurrent use. None of its methods blocks, except AwaitRegistered.
type Journal struct {
	feed     *feed.Feed[Event]
	observer func(reconciler.Event) // may be nil
	log      *slog.Logger
	keeper   *keeper // nil if the events do not outlive the process

	mu  sync.Mutex // held over a publication, so that the events are in the order of their numbers
	seq uint64     // of the last event
}

// New returns a Journal with the events that are in a file, to which Run writes; with an empty path they do not outlive the process. The
// observer is told of each new event before subscribers are, and resynced is called each time that one of them was too slow. Either may be
// nil.
func New(log *slog.Logger, path string, observer func(reconciler.Event), resynced func()) *Journal {
	j := &Journal{log: log, observer: observer, feed: feed.New(feed.Config[Event]{
		History: history,
		Resync: func(_ string, commit func(Event)) {
			if resynced != nil {
				resynced()
			}
			commit(Event{Event: reconciler.Event{
				Time: time.Now(), Kind: Resync, Message: "events were missed because they were not read in time; list the plugins again",
			}})
		},
	})}
	if path == "" {
		return j
	}
	past, err := load(path)
	if err != nil {
		log.Warn("earlier events cannot be read, and none are written; see that the file can be read, then restart", "error", err)
		return j
	}
	for _, e := range past {
		j.seq = e.Seq
		j.feed.Publish("", e)
	}
	j.keeper = newKeeper(path, log)
	return j
}

// Run writes the events to the file until ctx ends, and then those that are pending.
func (j *Journal) Run(ctx context.Context) {
	if j.keeper != nil {
		j.keeper.run(ctx)
	}
}

// Last returns the last n events that are kept, oldest first.
func (j *Journal) Last(n int) []Event { return j.feed.Last(n) }

// Events returns the last tail events that are kept, and then what happens until ctx ends or the Journal is closed.
func (j *Journal) Events(ctx context.Context, tail int) <-chan Event { return j.feed.Replay(ctx, tail) }

// Close ends all subscriptions.
func (j *Journal) Close() { j.feed.Close() }

// Publish adds an event without logging it.
func (j *Journal) Publish(e reconciler.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.observer != nil {
		j.observer(e)
	}
	j.seq++
	j.feed.Publish("", Event{Seq: j.seq, Event: e})
	if j.keeper != nil {
		j.keeper.add(Event{Seq: j.seq, Event: e})
	}
}

// Observe adds an event and logs it in one line. It implements [reconciler.Config].Observe.
func (j *Journal) Observe(e reconciler.Event) { j.observe(e, states[e.Kind]) }

// observe is Observe of an event after which its subject is in a state; empty if the event says nothing of that.
func (j *Journal) observe(e reconciler.Event, state string) {
	j.Publish(e)
	level := slog.LevelInfo
	if troubling[e.Kind] {
		level = slog.LevelWarn
	}
	if !j.log.Enabled(context.Background(), level) {
		return
	}
	attributes := append(make([]slog.Attr, 0, 9), slog.String("event", string(e.Kind)))
	for _, a := range []struct{ key, value string }{
		{"type", e.Type}, {"plugin", e.Name}, {"instance", e.Instance}, {"state", state},
		{"endpoint", e.Endpoint}, {"socket", e.SocketPath}, {"reason", e.Message},
	} {
		if a.value != "" {
			attributes = append(attributes, slog.String(a.key, a.value))
		}
	}
	subject := "plugin"
	if e.Kind == pipeline.EventDegraded || e.Kind == pipeline.EventRecovered {
		subject = "plugin discovery"
	}
	j.log.LogAttrs(context.Background(), level, subject+" "+string(e.Kind), attributes...)
}

// ObserveHost is Observe for what the host of launched plugins tells.
func (j *Journal) ObserveHost(e host.Event) {
	j.Observe(reconciler.Event{Time: e.Time, Kind: reconciler.EventKind(e.Kind), Name: e.Plugin, Message: e.Message})
}

// ObserveLauncher is Observe for what the launcher tells.
func (j *Journal) ObserveLauncher(e launcher.Event) {
	j.observe(reconciler.Event{
		Time: e.Time, Kind: reconciler.EventKind(e.Kind), Name: e.Name, SocketPath: e.Socket, Message: e.Message,
	}, launchedStates[e.Kind])
}

// states are those of instances after an event, as they are listed; for what is listed no longer, the word of the event.
var states = map[reconciler.EventKind]string{
	reconciler.EventRegistered: string(reconciler.StateRegistered), reconciler.EventUpdated: string(reconciler.StateRegistered),
	reconciler.EventRestored: string(reconciler.StateRestored), reconciler.EventSuperseded: string(reconciler.StateSuperseded),
	reconciler.EventRefused: string(reconciler.StateRefused), reconciler.EventIgnored: string(reconciler.StateIgnored),
	reconciler.EventFailed: string(reconciler.StateBackoff), reconciler.EventUnreachable: string(reconciler.StateUnreachable),
	reconciler.EventUnlinked: string(reconciler.StateUnlinked), reconciler.EventDeregistered: string(reconciler.EventDeregistered),
	pipeline.EventDegraded: "degraded", pipeline.EventRecovered: "ok",
}

// launchedStates are those of launched plugins after an event of the launcher; [launcher.EventFailed] leaves them in several.
var launchedStates = map[launcher.EventKind]string{
	launcher.EventReady: string(launcher.StateRunning), launcher.EventAdopted: string(launcher.StateRunning),
	launcher.EventReplaced: string(launcher.StateRunning), launcher.EventResponsive: string(launcher.StateRunning),
	launcher.EventUnresponsive: string(launcher.StateUnresponsive), launcher.EventBackoff: string(launcher.StateBackoff),
	launcher.EventStopped: string(launcher.StateStopped),
}

// troubling are the kinds of events at which an operator may have to look. All others tell of the ordinary life of plugins.
var troubling = map[reconciler.EventKind]bool{
	reconciler.EventRefused: true, reconciler.EventFailed: true, reconciler.EventUnreachable: true, reconciler.EventUnlinked: true,
	pipeline.EventDegraded:                           true,
	reconciler.EventKind(host.EventDenied):           true,
	reconciler.EventKind(host.EventLeftover):         true,
	reconciler.EventKind(launcher.EventBackoff):      true,
	reconciler.EventKind(launcher.EventUnresponsive): true,
	reconciler.EventKind(launcher.EventUnhealthy):    true,
}

// AwaitRegistered blocks until the plugin behind a socket is registered, as plugins tells. It fails if the plugin is refused meanwhile,
// when ctx ends, and when the Journal is closed.
func (j *Journal) AwaitRegistered(ctx context.Context, socketPath string, plugins func() []reconciler.Status) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	events := j.Events(watching, 0)
	registered := func(s reconciler.Status) bool {
		// A newer instance may have come before anybody looked here.
		return s.SocketPath == socketPath && (s.State == reconciler.StateRegistered || s.State == reconciler.StateSuperseded)
	}
	for !slices.ContainsFunc(plugins(), registered) {
		for concerned := false; !concerned; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case e, open := <-events:
				if !open {
					return cmp.Or(ctx.Err(), dynamicplugins.ErrShutdown)
				}
				if e.SocketPath == socketPath && (e.Kind == reconciler.EventRefused || e.Kind == reconciler.EventIgnored) {
					return fmt.Errorf("it was %s: %s", e.Kind, e.Message)
				}
				concerned = e.SocketPath == socketPath || e.Kind == Resync
			}
		}
	}
	return nil
}
