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
	// EventKind names what happened, and Event says what happened to one plugin.
	EventKind = machine.EventKind
	Event     = machine.Event
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
	StateRestored      = machine.StateRestored
	StateConnecting    = machine.StateConnecting
	StateWaiting       = machine.StateWaiting
	StateValidating    = machine.StateValidating
	StateAdmitting     = machine.StateAdmitting
	StateRegistering   = machine.StateRegistering
	StateNotifying     = machine.StateNotifying
	StateRegistered    = machine.StateRegistered
	StateDeregistering = machine.StateDeregistering
	StateSuperseded    = machine.StateSuperseded
	StateBackoff       = machine.StateBackoff
	StateUnreachable   = machine.StateUnreachable
	StateRefused       = machine.StateRefused
	StateUnlinked      = machine.StateUnlinked
	StateIgnored       = machine.StateIgnored
)

// The sources of a plugin.
const (
	SourceDiscovered = machine.SourceDiscovered
	SourceLaunched   = machine.SourceLaunched
	SourceHost       = machine.SourceHost
)

// The kinds of events.
const (
	EventRegistered   = machine.EventRegistered
	EventDeregistered = machine.EventDeregistered
	EventUpdated      = machine.EventUpdated
	EventSuperseded   = machine.EventSuperseded
	EventRefused      = machine.EventRefused
	EventIgnored      = machine.EventIgnored
	EventFailed       = machine.EventFailed
	EventUnreachable  = machine.EventUnreachable
	EventUnlinked     = machine.EventUnlinked
	EventRestored     = machine.EventRestored
	EventReleased     = machine.EventReleased
)

// The results of an attempt.
const (
	ResultRegistered = machine.ResultRegistered
	ResultSuperseded = machine.ResultSuperseded
	ResultRefused    = machine.ResultRefused
	ResultIgnored    = machine.ResultIgnored
	ResultFailed     = machine.ResultFailed
	ResultGone       = machine.ResultGone
)
