// Package journal records the events of plugins: it numbers each event, logs it in one line, keeps the last ones, and delivers them to
// subscribers in order. With a file, the events outlive the process.
package journal

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/broadcast"
	"github.com/patchbay-dev/patchbay/plugin"
)

// history is the number of past events that are kept.
const history = 4096

// Journal records events. It is safe for concurrent use. Publishing does not block.
type Journal struct {
	feed     *broadcast.Feed[plugin.Event]
	observer func(plugin.Event) // may be nil
	log      *slog.Logger
	keeper   *keeper // nil if events are not written to a file
	unread   error   // why the file could not be read; there is no keeper then
	began    time.Time

	mu  sync.Mutex // held while an event is published, so that events are in the order of their numbers
	seq uint64     // of the last event
	// registered are the registered plugins, by instance, and launched the last registration of each launched plugin, by its name.
	registered map[string]served
	launched   map[string]served
	// room is the length of launched from which forget is called.
	room int
}

// served is a registration.
type served struct {
	name             plugin.Name
	instance, socket string
	lastEvent        uint64 // the number of the launched plugin's last event
}

// New returns a Journal with the events in a file, to which Run writes new ones; with an empty path there is no file. New events are passed
// to observer before subscribers receive them, and resynced is called each time a subscriber was too slow. Either may be nil.
func New(log *slog.Logger, path string, observer func(plugin.Event), resynced func()) *Journal {
	j := &Journal{log: log, observer: observer, registered: map[string]served{}, launched: map[string]served{}, began: time.Now()}
	j.feed = &broadcast.Feed[plugin.Event]{
		History: history,
		Resync: func(_ string, commit func(plugin.Event)) {
			if resynced != nil {
				resynced()
			}
			commit(plugin.Event{
				Time: time.Now(), Kind: plugin.EventResync, Message: "events were missed because they were not read in time; list the plugins again",
			})
		},
	}
	if path == "" {
		return j
	}
	past, err := load(path)
	if err != nil {
		log.Warn("earlier events cannot be read, and none are written; check that the file can be read, then restart", "error", err)
		j.unread = err
		return j
	}
	for _, e := range past[max(0, len(past)-history):] {
		j.seq = e.Seq
		j.feed.Publish("", e)
		if j.note(e); isLaunched(e) {
			j.servedAs(e)
		}
	}
	clear(j.registered) // they were registered by a process that has ended
	j.keeper = newKeeper(path, log)
	return j
}

// Run writes the events to the file until ctx ends, and then the pending ones.
func (j *Journal) Run(ctx context.Context) {
	if j.keeper == nil {
		return
	}
	var rereading sync.WaitGroup
	rereading.Go(func() { j.keeper.reread(ctx) })
	j.keeper.run(ctx)
	rereading.Wait()
}

// Trouble returns why events cannot be written to the file or read from it, with the remedy, and since when; the message is empty if they
// can. The result kept reports whether there is a file.
func (j *Journal) Trouble() (message string, since time.Time, kept bool) {
	if j.unread != nil {
		return fmt.Sprintf("earlier events cannot be read, and none are written: %v; check that the file can be read, then restart", j.unread),
			j.began, true
	}
	if j.keeper == nil {
		return "", time.Time{}, false
	}
	message, since = j.keeper.trouble()
	return message, since, true
}

// Last returns the last n events in memory, oldest first.
func (j *Journal) Last(n int) []plugin.Event { return j.feed.Last(n) }

// All returns all events, oldest first. It reads from the file the events that are no longer in memory.
func (j *Journal) All() ([]plugin.Event, error) {
	recent := j.feed.Last(history)
	if j.keeper == nil {
		return recent, nil
	}
	all, err := load(j.keeper.path)
	if j.keeper.report(&j.keeper.reading, err) {
		signal(j.keeper.unreadable)
	}
	if len(recent) == 0 {
		return all, err
	}
	older := slices.IndexFunc(all, func(e plugin.Event) bool { return e.Seq >= recent[0].Seq })
	if older < 0 {
		older = len(all)
	}
	return append(all[:older:older], recent...), err
}

// Events returns the last tail events in memory, and then new events until ctx ends or the Journal is closed.
func (j *Journal) Events(ctx context.Context, tail int) <-chan plugin.Event {
	return j.feed.Replay(ctx, tail)
}

// Close ends all subscriptions.
func (j *Journal) Close() { j.feed.Close() }

// Publish adds an event without logging it.
func (j *Journal) Publish(e plugin.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.observer != nil {
		j.observer(e)
	}
	j.seq++
	e.Seq = j.seq
	j.feed.Publish("", e)
	if j.keeper != nil {
		j.keeper.add(e)
	}
}

// Observe adds an event and logs it in one line. It implements [reconciler.Config].Observe.
func (j *Journal) Observe(e plugin.Event) {
	j.Publish(e)
	j.mu.Lock()
	j.note(e)
	j.mu.Unlock()
	j.logEvent(e, states[e.Kind])
}

// note updates the registered plugins after an event. The caller holds mu.
func (j *Journal) note(e plugin.Event) {
	switch e.Kind {
	case plugin.EventRegistered, plugin.EventUpdated, plugin.EventRestored:
		j.registered[e.Instance] = served{name: e.PluginName(), instance: e.Instance, socket: e.SocketPath}
	case plugin.EventDeregistered, plugin.EventUnlinked:
		delete(j.registered, e.Instance)
	default:
	}
}

// isLaunched reports whether an event has the name of a launched plugin, as the catalogue has it.
func isLaunched(e plugin.Event) bool { return e.Type == "" && e.Name != "" }

// servedAs returns the current or last registration of the launched plugin that an event is about. The caller holds mu.
func (j *Journal) servedAs(e plugin.Event) served {
	for _, is := range j.registered {
		if is.socket == e.SocketPath {
			j.launched[e.Name] = is
		}
	}
	was, known := j.launched[e.Name]
	if was.lastEvent = j.seq; known {
		j.launched[e.Name] = was
	}
	if len(j.launched) > j.room {
		j.forget()
	}
	return was
}

// forget deletes launched plugins that are neither registered nor named by an event in memory. The caller holds mu.
func (j *Journal) forget() {
	maps.DeleteFunc(j.launched, func(_ string, was served) bool {
		_, is := j.registered[was.instance]
		return !is && was.lastEvent+history < j.seq
	})
	j.room = 2 * len(j.launched)
}

// LaunchedAs returns the type and name with which a launched plugin is registered, or was last, if an event recorded that.
func (j *Journal) LaunchedAs(name string) (registered plugin.Name, known bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	was, known := j.launched[name]
	return was.name, known
}

// InstanceOf returns the type, name and instance with which a launched plugin is registered at a socket, if it is.
func (j *Journal) InstanceOf(name, socket string) (registered plugin.Name, instance string, known bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.launched[name]
	return was.name, was.instance, was.socket == socket && socket != ""
}

// Pass adds an event for a state that no other event reports, and logs it in one line at level Debug. It implements
// [reconciler.Config].OnTransition.
func (j *Journal) Pass(e plugin.Event) {
	e.Message = cmp.Or(passing[e.Kind], e.Message)
	j.Publish(e)
	j.logLine(slog.LevelDebug, e, string(e.Kind))
}

// passing has a message for each of these states, about the work or the wait of the host.
var passing = map[plugin.EventKind]string{
	plugin.EventKind(plugin.StateConnecting):    "calling GetInfo on its socket",
	plugin.EventKind(plugin.StateWaiting):       "waiting for other calls for its name",
	plugin.EventKind(plugin.StateValidating):    "calling its handler's ValidatePlugin",
	plugin.EventKind(plugin.StateAdmitting):     "asking the admission plugin whether it may be registered",
	plugin.EventKind(plugin.StateRegistering):   "calling its handler's RegisterPlugin, then saving it",
	plugin.EventKind(plugin.StateNotifying):     "notifying the plugin that it is registered",
	plugin.EventKind(plugin.StateDeregistering): "deregistering",
}

// logEvent logs an event with the state that follows it; the state is empty if the event does not determine one.
func (j *Journal) logEvent(e plugin.Event, state string) {
	level := slog.LevelInfo
	if troubling[e.Kind] {
		level = slog.LevelWarn
	}
	if j.log.Enabled(context.Background(), level) {
		j.logLine(level, e, state)
	}
}

func (j *Journal) logLine(level slog.Level, e plugin.Event, state string) {
	attributes := make([]slog.Attr, 0, 8)
	for _, a := range []struct{ key, value string }{
		{"event", string(e.Kind)}, {"type", e.Type}, {"plugin", e.Name}, {"instance", e.Instance}, {"state", state},
		{"endpoint", e.Endpoint}, {"socket", e.SocketPath}, {"reason", e.Message},
	} {
		if a.value != "" {
			attributes = append(attributes, slog.String(a.key, a.value))
		}
	}
	subject := "plugin"
	if e.Name == "" && (e.Kind == plugin.EventDegraded || e.Kind == plugin.EventRecovered) {
		subject = "plugin discovery"
	}
	j.log.LogAttrs(context.Background(), level, subject+" "+string(e.Kind), attributes...)
}

// ObserveLaunched is Observe for an event of a launched plugin, which is named as it was launched. Its line also has the type with which
// the plugin is registered, or was last, and the instance at this socket.
func (j *Journal) ObserveLaunched(e plugin.Event) {
	j.Publish(e)
	j.mu.Lock()
	was := j.servedAs(e)
	j.mu.Unlock()
	e.Type = was.name.Type
	if was.socket == e.SocketPath {
		e.Instance = was.instance
	}
	j.logEvent(e, cmp.Or(string(e.State), hostStates[e.Kind]))
}

// states are the states of instances after an event, as lists show them. If the instance is no longer listed, it is the event's kind.
var states = map[plugin.EventKind]string{
	plugin.EventRegistered: string(plugin.StateRegistered), plugin.EventUpdated: string(plugin.StateRegistered),
	plugin.EventRestored: string(plugin.StateRestored), plugin.EventSuperseded: string(plugin.StateSuperseded),
	plugin.EventRefused: string(plugin.StateRefused), plugin.EventIgnored: string(plugin.StateIgnored),
	plugin.EventFailed: string(plugin.StateBackoff), plugin.EventUnreachable: string(plugin.StateUnreachable),
	plugin.EventUnlinked: string(plugin.StateUnlinked), plugin.EventDeregistered: string(plugin.EventDeregistered),
	plugin.EventDegraded: "degraded", plugin.EventRecovered: "ok",
}

// hostStates are the states of launched plugins after an event of the host.
var hostStates = map[plugin.EventKind]string{
	plugin.EventLaunched: string(plugin.StateStarting), plugin.EventTerminated: string(plugin.EventTerminated),
}

// troubling are the kinds of events at which an operator may have to look. All other kinds are routine.
var troubling = map[plugin.EventKind]bool{
	plugin.EventRefused: true, plugin.EventFailed: true, plugin.EventUnreachable: true, plugin.EventUnlinked: true,
	plugin.EventDegraded:     true,
	plugin.EventDenied:       true,
	plugin.EventLeftover:     true,
	plugin.EventBackoff:      true,
	plugin.EventBusy:         true,
	plugin.EventUnresponsive: true,
	plugin.EventUnhealthy:    true,
}
