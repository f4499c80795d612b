package host

import (
	"sync"
	"time"
)

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	// EventLaunched is sent when a plugin was started.
	EventLaunched EventKind = "launched"
	// EventTerminated is sent when a plugin has ended; Err is its [PluginProcess.Err].
	EventTerminated EventKind = "terminated"
	// EventDenied is sent when a call to the host was refused: it had no ticket or a wrong one, came from a stranger, or was to a
	// service that is not granted. At most 10 a second are sent for each plugin, and as many for all strangers.
	EventDenied EventKind = "denied"
	// EventLeftover is sent when a plugin ended and left processes behind, which were killed.
	EventLeftover EventKind = "leftover"
)

// Event is something that happened to a launched plugin.
type Event struct {
	Time time.Time
	Kind EventKind
	// Plugin is the name of the plugin; empty for a stranger.
	Plugin string
	// PID is the process of the plugin, or for EventDenied the one that called; zero if it is not known.
	PID int
	// Message says what happened, for people.
	Message string
	// Err is set for EventTerminated only.
	Err error
}

// maxDenials bounds the events of refused calls in a second, per plugin.
const maxDenials = 10

// quota lets a number of events through in each second.
type quota struct {
	mu         sync.Mutex
	since      time.Time
	n          int
	suppressed int
}

// take reports whether an event may be sent, and how many were not since the last one.
func (q *quota) take(now time.Time) (suppressed int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.since) >= time.Second {
		q.since, q.n = now, 0
	}
	if q.n == maxDenials {
		q.suppressed++
		return 0, false
	}
	q.n++
	suppressed, q.suppressed = q.suppressed, 0
	return suppressed, true
}
