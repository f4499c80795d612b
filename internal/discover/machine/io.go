package machine

import (
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Ref names an instance of one [Machine]. It is never used again.
type Ref uint64

// Moment is when a step is taken, and what chance says: a number from 0 to 1 that is not 1.
type Moment struct {
	Now    time.Time
	Chance float64
	// Passing: [Pass] tells of the states of which no event does.
	Passing bool
}

// FailureKind says what follows from a failure.
type FailureKind uint8

// The kinds of failures.
const (
	Fault      FailureKind = iota // something is wrong, and a plugin is told of it
	Patience                      // not yet: a plugin is not told
	Distrusted                    // it is not trusted
	Silent                        // nobody accepts on a socket
	Absent                        // there is no socket
	Unserved                      // the program that accepts there does not serve the registration
	Unclaimed                     // there is no handler for the type
)

// Failure is an error and what follows from it.
type Failure struct {
	Err    error
	Kind   FailureKind
	Reason trust.Reason // of one that is Distrusted
	// refusal: the plugin is told, or was.
	refusal bool
	// quiet: no event tells of it, because one told of another like it. The plugin is told, if it is to be, and its status says so.
	quiet bool
}

func (f *Failure) nobody() bool { return f.Kind == Silent || f.Kind == Absent }

// Socket is one of the two sockets of an instance.
type Socket uint8

// The sockets of an instance.
const (
	Registration Socket = iota // of its registration service
	Endpoint                   // of its own services
)

// TimerKind says what a timer is for.
type TimerKind uint8

// The kinds of timers.
const (
	Retry        TimerKind = iota // the next attempt
	Decide                        // others wait for this one to answer, until then
	Replace                       // its record outlives it until then, because it may be replaced
	TurnUp                        // its socket may turn up elsewhere until then
	Grace                         // it may be reachable again until then
	Rob                           // its process may end until then, or somebody else removed its socket; then when that is looked at again
	LookAgain                     // at its registration socket, for want of a hint
	LookAgainToo                  // at its endpoint
	timerKinds
)

// Timer names a timer: one that is set anew takes the place of the one before.
type Timer struct {
	Ref  Ref
	Kind TimerKind
}

// Input is what a [Machine] takes: one of the types below.
type Input interface{ input() }

// The inputs.
type (
	// Changed says which sockets appeared, moved or went.
	Changed []Change
	// Complete says that every socket that exists has been seen.
	Complete struct{}
	// HandlerSet says that there is another handler for a type. A new number is another handler; zero is none.
	HandlerSet struct {
		Type    string
		Handler int
	}
	// Urged asks to try at once what waits, of one name or, if the key is zero, all.
	Urged struct{ Key plugin.Name }
	// Released says that a name is not to be kept for its user any more.
	Released struct{ Key plugin.Name }
	// Answered is the result of [Ask].
	Answered struct {
		Ref     Ref
		Path    string // that was dialled
		Info    plugin.Info
		Failure *Failure
		Peer    plugin.Peer
		Account plugin.Account
	}
	// Returned is the result of [Call].
	Returned struct {
		Key          plugin.Name
		Failure      *Failure
		ID           string // of what was saved, with a failure in part
		Registration plugin.Registration
		Kept         bool
	}
	// Delivered is the result of [Tell].
	Delivered struct{ Ref Ref }
	// Fired is a timer that was set, and neither stopped nor set anew since.
	Fired struct{ Timer Timer }
	// Hinted says that something happened on a socket that is watched.
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
	// Ended says that a process ended which [WatchProcess] watches, or that it cannot be watched.
	Ended struct{ Ref Ref }
	// Sought is the result of [Seek].
	Sought struct {
		Ref     Ref
		Listens bool // or it cannot be told
	}
)

func (Changed) input()     {}
func (Complete) input()    {}
func (HandlerSet) input()  {}
func (Urged) input()       {}
func (Released) input()    {}
func (Answered) input()    {}
func (Returned) input()    {}
func (Delivered) input()   {}
func (Fired) input()       {}
func (Hinted) input()      {}
func (Unwatchable) input() {}
func (Probed) input()      {}
func (Ended) input()       {}
func (Sought) input()      {}

// Change is one change of the desired state of the world.
type Change struct {
	cache.Change
	Source plugin.Source // of what appeared
	// Withdrawn says why a socket does not count any more though it is there; nil if it was removed.
	Withdrawn *Failure
}

// CallKind is what a lane calls.
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

// Entry names an instance in the registry.
type Entry struct{ Type, Name, ID string }

// Effect is what a [Machine] asks for: one of the types below. They are executed in order, and none but Ask, Call, Tell, Probe, Seek,
// Forget and DiscardLater may block.
type Effect interface{ effect() }

// The effects.
type (
	// Ask dials a socket and asks GetInfo. The connection is kept under the Ref.
	Ask struct {
		Ref    Ref
		Path   string
		Socket plugin.SocketID
		Type   string // as far as it is known
		First  bool   // no attempt has failed
	}
	// Cancel abandons the Ask or Call of an instance, which returns nevertheless.
	Cancel struct{ Ref Ref }
	// Call makes one call of a lane.
	Call struct {
		Kind    CallKind
		Ref     Ref
		Handler int
		// Instance is as it is now, with the endpoint that the handler is told. Deprecated says that its socket is in the deprecated
		// directory.
		Instance   plugin.Instance
		Deprecated bool
		Failure    *Failure // of what CallKeep asks
	}
	// Tell tells a plugin on its connection, which is closed then, that it is refused.
	Tell struct {
		Ref        Ref
		Type, Path string
		Reason     error
	}
	// Close closes the connection of an instance, if there is one.
	Close struct{ Ref Ref }
	// Hand gives the attempt of one instance to another, and its connection if Conn is set.
	Hand struct {
		From, To Ref
		Conn     bool
	}
	// Begin begins an attempt, unless one is under way.
	Begin struct {
		Ref  Ref
		At   time.Time
		Path string
	}
	// End ends an attempt, if one is under way.
	End struct {
		Ref     Ref
		Named   plugin.Info
		Result  plugin.Result
		Failure error
	}
	// Watch keeps the connection of an instance for the hints that it gives.
	Watch struct{ Ref Ref }
	// Unwatch ends the watch of a socket.
	Unwatch struct {
		Ref    Ref
		Socket Socket
	}
	// Probe finds out whether anybody accepts on a socket. What it then watches counts only if KeepProbe follows the result.
	Probe struct {
		Ref        Ref
		Socket     Socket
		Path, Type string
		Identity   plugin.SocketID // zero: any
	}
	// KeepProbe keeps what the last probe watches, in place of what was watched before.
	KeepProbe struct {
		Ref    Ref
		Socket Socket
	}
	// WatchProcess tells when a process ends.
	WatchProcess struct {
		Ref  Ref
		Peer plugin.Peer
	}
	// UnwatchProcess ends a WatchProcess.
	UnwatchProcess struct{ Ref Ref }
	// Seek finds out whether anybody still listens on a socket that was removed.
	Seek struct {
		Ref    Ref
		Socket plugin.SocketID
		Peer   plugin.Peer // that listened
	}
	// SetTimer sets a timer, in place of what it was set to.
	SetTimer struct {
		Timer Timer
		After time.Duration
	}
	// StopTimer stops a timer.
	StopTimer struct{ Timer Timer }
	// Publish makes visible what was saved of an instance.
	Publish struct{ Ref Ref }
	// DiscardLater takes back what was saved of an instance, and tries until that is done.
	DiscardLater struct {
		Ref Ref
		Entry
	}
	// Confirm has the registry give an instance out.
	Confirm Entry
	// Hide has the registry not give an instance out.
	Hide struct {
		Entry
		Reason error
	}
	// Forget removes an instance from the registry, and tries until that is done.
	Forget Entry
	// Reserve replaces the reservation of a name. Unless Save is set, an instance of the name is about to be removed from the registry, and
	// both must be saved together.
	Reserve struct {
		Reservation plugin.Reservation
		Save        bool
	}
	// Emit tells what happened.
	Emit struct{ Event plugin.Event }
	// Pass tells of a state that an instance has come to and of which no event tells. The kind of its event is the state.
	Pass struct{ Event plugin.Event }
	// Distrust tells that something was refused because it is not trusted.
	Distrust struct{ Reason trust.Reason }
	// Retire lets go of a handler that no lane has any more, and none will have.
	Retire struct{ Handler int }
)

func (Ask) effect()            {}
func (Cancel) effect()         {}
func (Call) effect()           {}
func (Tell) effect()           {}
func (Close) effect()          {}
func (Hand) effect()           {}
func (Begin) effect()          {}
func (End) effect()            {}
func (Watch) effect()          {}
func (Unwatch) effect()        {}
func (Probe) effect()          {}
func (KeepProbe) effect()      {}
func (WatchProcess) effect()   {}
func (UnwatchProcess) effect() {}
func (Seek) effect()           {}
func (SetTimer) effect()       {}
func (StopTimer) effect()      {}
func (Publish) effect()        {}
func (DiscardLater) effect()   {}
func (Confirm) effect()        {}
func (Hide) effect()           {}
func (Forget) effect()         {}
func (Reserve) effect()        {}
func (Pass) effect()           {}
func (Emit) effect()           {}
func (Distrust) effect()       {}
func (Retire) effect()         {}
