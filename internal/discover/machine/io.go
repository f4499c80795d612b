package machine

import (
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Ref identifies an instance of one [Machine]. It is not reused.
type Ref uint64

// Moment is the time of a step, and the other properties of its environment.
type Moment struct {
	Now     time.Time
	Chance  float64 // a random number in [0, 1)
	Passing bool    // whether to emit Pass effects
}

// FailureKind determines the reaction to a failure.
type FailureKind uint8

// The kinds of failures.
const (
	Fault      FailureKind = iota // the plugin is sent a refusal
	Patience                      // not ready yet: the attempt is repeated without a refusal
	Distrusted                    // the plugin is not trusted
	Silent                        // the socket does not accept connections
	Absent                        // there is no socket
	Unserved                      // the program does not serve the registration service
	Unclaimed                     // the type has no handler
)

// Failure is an error and its kind.
type Failure struct {
	Err     error
	Kind    FailureKind
	Reason  trust.Reason // if it is Distrusted
	refusal bool         // the plugin is or was sent a refusal
	quiet   bool         // it leads to no event, because there was one for a similar failure
}

// isDead reports whether no process accepts connections.
func (f *Failure) isDead() bool { return f.Kind == Silent || f.Kind == Absent }

// Socket is one of the two sockets of an instance.
type Socket uint8

// The sockets of an instance.
const (
	Registration Socket = iota // serves the registration service
	Endpoint                   // serves the plugin's own services
)

// TimerKind is the purpose of a timer.
type TimerKind uint8

// The kinds of timers.
const (
	Retry        TimerKind = iota // begins the next attempt
	Decide                        // ends the wait of other instances for the answer of this one
	Replace                       // removes an instance that is gone from the registry, if its replacement has not registered
	TurnUp                        // ends the search for a missing socket
	Grace                         // gives up an instance that does not accept connections
	Rob                           // checks whether an instance without a socket still serves
	LookAgain                     // probes the registration socket, if it cannot be watched
	LookAgainToo                  // probes the endpoint
	timerKinds
)

// Timer identifies a timer. Setting it again replaces its time.
type Timer struct {
	Ref  Ref
	Kind TimerKind
}

// Input is an input of a [Machine]: one of the types below.
type Input any

// The inputs.
type (
	// Changed reports sockets that appeared, moved or disappeared.
	Changed []Change
	// Complete reports that every existing socket has been seen.
	Complete struct{}
	// HandlerSet sets the handler for a type. Each handler has a number; zero removes the handler.
	HandlerSet struct {
		Type    string
		Handler int
	}
	// Urged requests an immediate retry of the waiting instances of one name or, if the key is zero, of all.
	Urged struct{ Key plugin.Name }
	// Released ends the reservation of a name.
	Released struct{ Key plugin.Name }
	// Answered is the result of [Ask].
	Answered struct {
		Ref     Ref
		Path    string // where the plugin was dialled
		Info    plugin.Info
		Failure *Failure
		Peer    plugin.Peer
		Account plugin.Account
	}
	// Returned is the result of [Call].
	Returned struct {
		Key          plugin.Name
		Failure      *Failure
		ID           string // of the saved instance; with a Failure, of an instance that was saved only in part
		Registration plugin.Registration
		Kept         bool
	}
	// Delivered is the result of [Tell].
	Delivered struct{ Ref Ref }
	// Fired reports that a timer has fired. It must not be sent for a timer that was stopped or set again.
	Fired struct{ Timer Timer }
	// Hinted reports an event on a watched socket.
	Hinted struct {
		Ref    Ref
		Socket Socket
	}
	// Unwatchable is the result of a [Watch] that failed.
	Unwatchable struct{ Ref Ref }
	// Probed is the result of [Probe].
	Probed struct {
		Ref     Ref
		Socket  Socket
		Path    string
		Failure *Failure
		Watched bool
	}
	// Ended reports that the process of a [WatchProcess] has ended, or cannot be watched.
	Ended struct{ Ref Ref }
	// Sought is the result of [Seek].
	Sought struct {
		Ref     Ref
		Listens bool // also true if it is unknown
	}
)

// Change is one change of the desired state of the world.
type Change struct {
	cache.Change
	Source plugin.Source // of a new socket
	// Withdrawn is the reason why a socket that still exists does not count any more; nil if it was removed.
	Withdrawn *Failure
}

// CallKind is the function that a lane calls.
type CallKind uint8

// The calls, one at a time in each lane.
const (
	CallProbe      CallKind = iota + 1 // connect to the endpoint
	CallValidate                       // ValidatePlugin
	CallAdmit                          // Config.Admit
	CallRegister                       // RegisterPlugin
	CallSave                           // Registry.Stage
	CallTell                           // NotifyRegistrationStatus(true)
	CallKeep                           // KeepRegistration
	CallDiscard                        // Staged.Discard
	CallDeRegister                     // DeRegisterPlugin
	CallGone                           // InstanceGone
	CallRemove                         // Registry.Remove
)

// Entry identifies an instance in the registry.
type Entry struct{ Type, Name, ID string }

// Effect is a request of a [Machine]: one of the types below. Effects are executed in order. Only Ask, Call, Tell, Probe, Seek, Forget and
// DiscardLater may block.
type Effect any

// The effects.
type (
	// Ask dials a socket and calls GetInfo. The executor keeps the connection for the instance.
	Ask struct {
		Ref    Ref
		Path   string
		Socket plugin.SocketID
		Type   string // empty if unknown
		First  bool   // no attempt has failed
	}
	// Cancel cancels the Ask or Call of an instance. Its result still follows.
	Cancel struct{ Ref Ref }
	// Call makes one call of a lane.
	Call struct {
		Kind       CallKind
		Ref        Ref
		Handler    int
		Instance   plugin.Instance // with the endpoint for the handler
		Deprecated bool            // its socket is in the deprecated directory
		Failure    *Failure        // the reason for CallKeep
	}
	// Tell sends a plugin a refusal on its connection, and closes the connection.
	Tell struct {
		Ref        Ref
		Type, Path string
		Reason     error
	}
	// Close closes the connection of an instance, if there is one.
	Close struct{ Ref Ref }
	// Hand transfers the attempt of one instance to another, with its connection if Conn is set.
	Hand struct {
		From, To Ref
		Conn     bool
	}
	// Begin begins an attempt, unless one is in progress.
	Begin struct {
		Ref  Ref
		At   time.Time
		Path string
	}
	// End ends an attempt, if one is in progress.
	End struct {
		Ref     Ref
		Named   plugin.Info
		Result  plugin.Result
		Failure error
	}
	// Watch watches the connection of an instance for hints.
	Watch struct{ Ref Ref }
	// Unwatch ends the watch of a socket.
	Unwatch struct {
		Ref    Ref
		Socket Socket
	}
	// Probe checks that a socket accepts connections, and watches its process. The watch ends unless KeepProbe follows the result.
	Probe struct {
		Ref        Ref
		Socket     Socket
		Path, Type string
		Identity   plugin.SocketID // zero: any
	}
	// KeepProbe replaces the watch of a socket by that of the last probe.
	KeepProbe struct {
		Ref    Ref
		Socket Socket
	}
	// WatchProcess requests [Ended] for a process.
	WatchProcess struct {
		Ref  Ref
		Peer plugin.Peer
	}
	// UnwatchProcess ends a WatchProcess.
	UnwatchProcess struct{ Ref Ref }
	// Seek checks whether a process still listens on a socket that was removed.
	Seek struct {
		Ref    Ref
		Socket plugin.SocketID
		Peer   plugin.Peer // the process that listened
	}
	// SetTimer sets a timer, or replaces its time.
	SetTimer struct {
		Timer Timer
		After time.Duration
	}
	// StopTimer stops a timer.
	StopTimer struct{ Timer Timer }
	// Publish makes a saved instance visible.
	Publish struct{ Ref Ref }
	// DiscardLater deletes a saved instance that is not visible, and retries until that succeeds.
	DiscardLater struct {
		Ref Ref
		Entry
	}
	// Confirm makes the registry dispense a hidden instance again.
	Confirm Entry
	// Hide makes the registry stop dispensing an instance.
	Hide struct {
		Entry
		Reason error
	}
	// Forget removes an instance from the registry, and retries until that succeeds.
	Forget Entry
	// Reserve replaces the reservation of a name. If Save is false, it must be saved together with the removal of an instance, which
	// follows.
	Reserve struct {
		Reservation plugin.Reservation
		Save        bool
	}
	// Emit publishes an event.
	Emit struct{ Event plugin.Event }
	// Pass reports that an instance has entered a state without an event. The kind of Event is the state.
	Pass struct{ Event plugin.Event }
	// Distrust counts a refusal for lack of trust.
	Distrust struct{ Reason trust.Reason }
	// Retire releases a handler that was replaced, and that no lane uses any more.
	Retire struct{ Handler int }
)
