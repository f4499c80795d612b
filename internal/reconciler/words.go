package reconciler

import "github.com/patchbay-dev/patchbay/internal/discover/machine"

// What happens to instances is decided by a pure state machine, whose words these are.
type (
	// State is what one instance of a plugin is doing, as operators read it.
	State = machine.State
	// Source says how a plugin came to the host.
	Source = machine.Source
	// Status describes one instance of a plugin, or one socket that has not answered yet.
	Status = machine.Status
	// EventKind names what happened.
	EventKind = machine.EventKind
	// Event says what happened to one plugin.
	Event = machine.Event
	// Result is how an attempt to register an instance ended.
	Result = machine.Result
	// Peer is the process at the other end of a registration socket, as the kernel names it. The zero value stands for a process that
	// cannot be seen.
	Peer = machine.Peer
	// Instance is the record of one registered instance of a plugin.
	Instance = machine.Instance
	// KeptName is a name that stays a user's until a time, though no plugin of it is registered. With the zero time it is nobody's.
	KeptName = machine.KeptName
	// Info is what a plugin announces about itself.
	Info = machine.Info
	// Bounds limit what a plugin may announce. Zero values stand for the defaults.
	Bounds = machine.Bounds
)

// The states of an instance.
const (
	StateRestored      State = machine.StateRestored
	StateConnecting    State = machine.StateConnecting
	StateWaiting       State = machine.StateWaiting
	StateValidating    State = machine.StateValidating
	StateAdmitting     State = machine.StateAdmitting
	StateRegistering   State = machine.StateRegistering
	StateNotifying     State = machine.StateNotifying
	StateRegistered    State = machine.StateRegistered
	StateIdle          State = machine.StateIdle
	StateDeregistering State = machine.StateDeregistering
	StateSuperseded    State = machine.StateSuperseded
	StateBackoff       State = machine.StateBackoff
	StateUnreachable   State = machine.StateUnreachable
	StateRefused       State = machine.StateRefused
	StateUnlinked      State = machine.StateUnlinked
	StateIgnored       State = machine.StateIgnored
)

// The sources of a plugin.
const (
	SourceDiscovered Source = machine.SourceDiscovered
	SourceLaunched   Source = machine.SourceLaunched
	SourceHost       Source = machine.SourceHost
)

// The kinds of events.
const (
	EventRegistered   EventKind = machine.EventRegistered
	EventDeregistered EventKind = machine.EventDeregistered
	EventUpdated      EventKind = machine.EventUpdated
	EventSuperseded   EventKind = machine.EventSuperseded
	EventRefused      EventKind = machine.EventRefused
	EventIgnored      EventKind = machine.EventIgnored
	EventFailed       EventKind = machine.EventFailed
	EventUnreachable  EventKind = machine.EventUnreachable
	EventUnlinked     EventKind = machine.EventUnlinked
	EventRestored     EventKind = machine.EventRestored
	EventReleased     EventKind = machine.EventReleased
)

// The results of an attempt.
const (
	ResultRegistered Result = machine.ResultRegistered
	ResultSuperseded Result = machine.ResultSuperseded
	ResultRefused    Result = machine.ResultRefused
	ResultIgnored    Result = machine.ResultIgnored
	ResultFailed     Result = machine.ResultFailed
	ResultGone       Result = machine.ResultGone
)
