package machine

import (
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/trust"
)

// State is what one instance of a plugin is doing, as operators read it.
type State string

// The states of an instance.
const (
	// StateRestored: known from before a restart of the host, not yet checked for life.
	StateRestored State = "restored"
	// StateConnecting: its socket is being asked who it is.
	StateConnecting State = "connecting"
	// StateWaiting: it has answered and waits for its turn in its lane.
	StateWaiting State = "waiting"
	// StateValidating: its handler's ValidatePlugin runs.
	StateValidating State = "validating"
	// StateAdmitting: Config.Admit is being asked.
	StateAdmitting State = "admitting"
	// StateRegistering: its handler's RegisterPlugin runs, or the registration is being saved.
	StateRegistering State = "registering"
	// StateNotifying: it is being told that it is registered.
	StateNotifying State = "notifying"
	// StateRegistered: it is registered, current and dispensed.
	StateRegistered State = "registered"
	// StateDeregistering: its handler's DeRegisterPlugin runs.
	StateDeregistering State = "deregistering"
	// StateSuperseded: a newer instance of the same type and name is current; this one takes over when that one goes.
	StateSuperseded State = "superseded"
	// StateIdle: it is registered, and its process is started when somebody needs it. The machine does not know it: who launches it does.
	StateIdle State = "idle"
	// StateBackoff: the last attempt failed without a refusal; the next one is due at NextRetry.
	StateBackoff State = "backoff"
	// StateUnreachable: its socket exists and nobody accepts on it, or on its endpoint.
	StateUnreachable State = "unreachable"
	// StateRefused: it was told that it is not registered, or is not trusted; the next attempt is due at NextRetry. Without one, no handler is
	// registered for its type, and it registers as soon as one is.
	StateRefused State = "refused"
	// StateUnlinked: it was registered, its socket was removed, and its process serves on: somebody else removed it. It is listed until
	// nobody serves on it any more, or its name is registered again.
	StateUnlinked State = "unlinked"
	// StateIgnored: no handler is registered for its type, and it is left alone; see Config.IgnoreUnhandled. It registers as soon as there is
	// one.
	StateIgnored State = "ignored"
)

// Source says how a plugin came to the host.
type Source string

// The sources of a plugin.
const (
	// SourceDiscovered: its socket was found in a plugin directory.
	SourceDiscovered Source = "discovered"
	// SourceLaunched: the host started its process.
	SourceLaunched Source = "launched"
	// SourceHost: the host itself registered it, past the pipeline.
	SourceHost Source = "host"
)

// Status describes one instance of a plugin, or one socket that has not answered yet.
type Status struct {
	// Type and Name are what the plugin announced; empty as long as it has not answered.
	Type, Name string
	// Versions are the versions that the plugin announced, in its order; Version is its own, if its handler found that out, and else the
	// first of them.
	Version  string
	Versions []string
	State    State
	// Current says that this instance is the one its handler has.
	Current bool
	// Registration is what its handler found out about it when it was registered last; zero before.
	Registration cache.Registration
	// Endpoint is the socket of the plugin's own services, SocketPath the one of its registration service.
	Endpoint, SocketPath string
	// Instance identifies the instance; empty as long as it has never been registered.
	Instance string
	Source   Source
	// FirstSeen is when the socket appeared, Since when the instance entered its state, RegisteredAt when it was registered first,
	// maybe before a restart of the host; zero if it is not registered.
	FirstSeen, Since, RegisteredAt time.Time
	// Attempts counts failed attempts since the last success; NextRetry is when the next one is due, zero if none is.
	Attempts  int
	NextRetry time.Time
	// LastError is the error of the last failed attempt, kept until the next success.
	LastError string
}

// EventKind names what happened.
type EventKind string

// The kinds of events.
const (
	// EventRegistered: a plugin was registered with its handler, saved and notified; it is now dispensed.
	EventRegistered EventKind = "registered"
	// EventDeregistered: a plugin is no longer registered; says why.
	EventDeregistered EventKind = "deregistered"
	// EventUpdated: a registered instance was registered again, for example because its socket moved.
	EventUpdated EventKind = "updated"
	// EventSuperseded: a newer instance is current; this one stays as the standby.
	EventSuperseded EventKind = "superseded"
	// EventRefused: a plugin was sent a refusal, with this reason. If its directory, socket or process is not trusted, nothing was sent.
	EventRefused EventKind = "refused"
	// EventIgnored: no handler is registered for the type of the plugin, which is left alone; see Config.IgnoreUnhandled.
	EventIgnored EventKind = "ignored"
	// EventFailed: an attempt to register a plugin failed without a refusal; it is repeated with back-off.
	EventFailed EventKind = "failed"
	// EventUnreachable: a registered plugin is not dispensed for now: its socket or endpoint stopped accepting or moved, or registering it
	// again failed.
	EventUnreachable EventKind = "unreachable"
	// EventUnlinked: somebody removed the socket of a registered plugin that still serves on it.
	EventUnlinked EventKind = "unlinked"
	// EventRestored: after a restart of the host, an instance was restored from the state and is being checked.
	EventRestored EventKind = "restored"
	// EventReleased: a name is no longer reserved for its user, although the time was not over.
	EventReleased EventKind = "released"
)

// Event says what happened to one plugin.
type Event struct {
	Time                                       time.Time
	Kind                                       EventKind
	Type, Name, Instance, Endpoint, SocketPath string
	// Message explains the event in one line.
	Message string
}

// Peer is the process at the other end of a registration socket, as the kernel names it. The zero value stands for a process that
// cannot be seen.
type Peer struct {
	PID int
	// Start says which of the processes that get the number it is, and Boot identifies the boot: together they name one process, however
	// often its number is used again.
	Start uint64
	Boot  string
}

// Instance is the record of one registered instance of a plugin.
type Instance struct {
	// ID is the AllocID in the registry.
	ID, Type, Name       string
	Versions             []string
	Endpoint, SocketPath string
	Socket               cache.SocketID
	Peer                 Peer
	Source               Source
	// Rank orders the instances of one type and name by their appearance, the newest highest. That need not be the order in which they
	// were registered: an older one takes over while the newest does not answer, and yields to it when it does. Zero is that of a record
	// without one.
	Rank         uint64
	RegisteredAt time.Time
	// Account is whose plugin it is.
	Account trust.Account
	// Registration is what the handler found out about it; zero before it was registered.
	Registration cache.Registration
}

// Info is what a plugin announces about itself.
type Info struct {
	Type, Name, Endpoint string
	Versions             []string
}

func (i Info) key() Key { return Key{i.Type, i.Name} }

// Bounds limit what a plugin may announce. Zero values stand for the defaults. A [Transport] may bound an answer as a whole before they
// apply; the error of its GetInfo then names that bound.
type Bounds struct {
	// Text is the greatest length of a type, name or endpoint in bytes (default 4,096). A version may have 64 at most.
	Text int
	// Versions is the greatest number of versions (default 64).
	Versions int
	// UserBytes is how many bytes all plugins of one user may announce (default 4 MiB), TotalBytes how many those of all users (default
	// 16 MiB), of which the last, as many as one user may have, are for plugins of root and of the host's user.
	UserBytes, TotalBytes int
	// UserPlugins is how many plugins one user may have that have said what they are, and TotalPlugins how many all may but root and the
	// host's user, who are not bounded: each takes descriptors (default: any number). As many at once may be asked what they are.
	UserPlugins, TotalPlugins int
}

// Result is how an attempt to register an instance ended.
type Result string

// The results of an attempt.
const (
	// ResultRegistered: it is registered.
	ResultRegistered Result = "registered"
	// ResultSuperseded: it answered, and rests behind a newer instance.
	ResultSuperseded Result = "superseded"
	// ResultRefused: it was told that it is not registered, or is not trusted enough to be told anything.
	ResultRefused Result = "refused"
	// ResultIgnored: there is no handler for it, and it was left alone.
	ResultIgnored Result = "ignored"
	// ResultFailed: something failed without the plugin being told of a refusal.
	ResultFailed Result = "failed"
	// ResultGone: it went meanwhile.
	ResultGone Result = "gone"
)
