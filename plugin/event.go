package plugin

import "time"

// EventKind is the kind of an [Event]. A change of state without a kind of its own has the [State] as its kind.
type EventKind string

// The kinds of events of all plugins.
const (
	// EventRegistered: the plugin was registered with its handler, saved and notified. It can now be dispensed.
	EventRegistered EventKind = "registered"
	// EventDeregistered: the plugin is no longer registered; the message is the reason.
	EventDeregistered EventKind = "deregistered"
	// EventUpdated: a registered instance was registered again, for example because its socket moved.
	EventUpdated EventKind = "updated"
	// EventSuperseded: a newer instance is current; this one remains as the standby.
	EventSuperseded EventKind = "superseded"
	// EventRefused: the plugin was refused; the message is the reason. If its directory, socket or process is not trusted, it was not
	// notified.
	EventRefused EventKind = "refused"
	// EventIgnored: the type of the plugin has no handler, and the host ignores such plugins.
	EventIgnored EventKind = "ignored"
	// EventFailed: an attempt to register the plugin failed without a refusal and is repeated with back-off. For a launched plugin: it could
	// not be started or exited with an error and is not started again, its replacement did not become ready, or a process that survived an
	// earlier host was not registered in time.
	EventFailed EventKind = "failed"
	// EventUnreachable: a registered plugin cannot be dispensed for now: its socket or endpoint stopped accepting or moved, or registering it
	// again failed.
	EventUnreachable EventKind = "unreachable"
	// EventUnlinked: the socket of a registered plugin was removed, but the plugin still serves it.
	EventUnlinked EventKind = "unlinked"
	// EventRestored: after a restart of the host, an instance was restored from the state and is being checked.
	EventRestored EventKind = "restored"
	// EventReleased: a name is no longer reserved for its user, although the reservation had not expired.
	EventReleased EventKind = "released"
)

// The kinds of events of launched plugins.
const (
	// EventLaunched: the process of the plugin was started.
	EventLaunched EventKind = "launched"
	// EventTerminated: the process of the plugin has exited; the message says how.
	EventTerminated EventKind = "terminated"
	// EventLeftover: the plugin exited and left processes behind, which were killed.
	EventLeftover EventKind = "leftover"
	// EventDenied: a call to the host was refused because it had no valid ticket, came from a stranger, or was to a service that is not
	// granted. At most 10 per second are reported for each plugin, 10 for all strangers, and 20 in total.
	EventDenied EventKind = "denied"
	// EventReady: the plugin is registered or, if it does not serve, has run for a second.
	EventReady EventKind = "ready"
	// EventBackoff: the process has exited or could not be started, and is restarted after a pause.
	EventBackoff EventKind = "backoff"
	// EventBusy: the program is open for writing; it is started when it is closed.
	EventBusy EventKind = "busy"
	// EventStopped: the plugin was stopped on request, or exited without an error and is not started again.
	EventStopped EventKind = "stopped"
	// EventReplacing: the process is being stopped, and a new one is started after that.
	EventReplacing EventKind = "replacing"
	// EventReplaced: a new process is ready, and the old one is being stopped.
	EventReplaced EventKind = "replaced"
	// EventIdle: the plugin has no process until it is needed.
	EventIdle EventKind = "idle"
	// EventAdopted: a process that survived an earlier host was taken over.
	EventAdopted EventKind = "adopted"
	// EventUnresponsive: the plugin does not answer health checks. EventResponsive: it answers them again.
	EventUnresponsive EventKind = "unresponsive"
	EventResponsive   EventKind = "responsive"
	// EventUnhealthy: the plugin reports that it does not serve (NOT_SERVING). EventHealthy: it serves again.
	EventUnhealthy EventKind = "unhealthy"
	EventHealthy   EventKind = "healthy"
)

// The kinds of events of the host itself.
const (
	// EventDegraded: a part of the host is degraded, for example discovery at the path that the event names; the message says why.
	// EventRecovered: it works again. With the name of a launched plugin: the plugin has not failed for the window of its restart policy.
	EventDegraded  EventKind = "degraded"
	EventRecovered EventKind = "recovered"
	// EventResync replaces the events that a subscriber was too slow to read; it should list the plugins again.
	EventResync EventKind = "resync"
	// EventReloaded: the daemon reloaded its configuration; the message says what changed. EventReloadFailed: a reload failed and changed
	// nothing; the message is the error.
	EventReloaded     EventKind = "reloaded"
	EventReloadFailed EventKind = "reload-failed"
	// EventAudit: a caller of the control socket did something that needs more than the role read, or was denied it, or called a plugin from
	// another node; the message says who, what and the result. Repeated denials and repeated calls to plugins are folded into one per minute.
	EventAudit EventKind = "audit"
	// EventFleetCallDenied: a call from another node was denied; the message names the caller. Repeats are folded into one per minute.
	EventFleetCallDenied EventKind = "fleet-call-denied"
)

// Event is something that happened to one plugin, or to the host. The JSON form is that of the file of events: without empty fields.
type Event struct {
	// Seq numbers the events of one host without gaps, across restarts if the events are kept in a file. It is zero before the event is
	// published.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	// Type and Name are those of the plugin; empty if they are not known. An event of a launched plugin has no type, and the name under
	// which it was launched.
	Type     string `json:"type,omitempty"`
	Name     string `json:"name,omitempty"`
	Instance string `json:"instance,omitempty"`
	// Endpoint is the socket of the plugin's own services, SocketPath that of its registration service.
	Endpoint   string `json:"endpoint,omitempty"`
	SocketPath string `json:"socketPath,omitempty"`
	// Message explains the event in one line.
	Message string `json:"message,omitempty"`
	// State is the state of a launched plugin after the event; empty for other events, and for events that were read from a file.
	State State `json:"-"`
}

// PluginName returns the type and name.
func (e *Event) PluginName() Name { return Name{e.Type, e.Name} }

// Condition reports whether one part of a host works.
type Condition struct {
	// Name is the name of the part, for example "discovery"; it is unique within a list.
	Name string
	OK   bool
	// Message describes the problem and its remedy; empty if OK.
	Message string
	// Since is when the problem began; zero if OK.
	Since time.Time
}
