package machine

import (
	"errors"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// HealthState is the health that a plugin reports through grpc.health.v1.
type HealthState string

// The states of health.
const (
	Unknown      HealthState = "unknown"      // nothing has been heard yet
	NotOffered   HealthState = "not-offered"  // the plugin does not offer grpc.health.v1, or does not know of itself
	Healthy      HealthState = "serving"      // it says so
	NotServing   HealthState = "not-serving"  // it says so, or answers with an error
	Unresponsive HealthState = "unresponsive" // it does not answer
)

// The errors that answer requests.
var (
	errStopped    = errors.New("it was stopped meanwhile")
	errNotStarted = errors.New("it was stopped, and is not started on demand until somebody starts it")
	errRemoved    = errors.New("it is not launched any more")
	errEndedEarly = errors.New("it ended by itself before it was ready")
	errClean      = errors.New("it ended by itself, without an error")
	errUnlinked   = errors.New("its socket was removed, and it could not be replaced")
)

// Description is what the machine has to know of a plugin.
type Description struct {
	// Identity is the same for two descriptions if a process of one can be adopted for the other.
	Identity string
	// Serves means that it is ready when it is registered.
	Serves bool
	// Upgrade is how a newer process replaces an older one.
	Upgrade plugin.Upgrade
	// Survives means that its process keeps running when its host ends.
	Survives bool
	// Restart is the policy, which may be [OnDemand].
	Restart plugin.RestartPolicy
	// Healthy is how long a process that was ready has to last to reset the back-off (default 1 min).
	Healthy time.Duration
	// StartTimeout is how long a process that serves may take from its start until it is ready (default 1 min).
	StartTimeout time.Duration
}

type (
	// Ref names a generation.
	Ref uint64
	// Request identifies a caller that waits for an Answer. Zero has no caller.
	Request uint64
	// TimerKind is what a timer is for. A generation has at most one of each.
	TimerKind uint8
	// Timer is one timer.
	Timer struct {
		Ref
		Kind TimerKind
	}
	// Moment is the time of an input, with a random number in [0,1).
	Moment struct {
		Now    time.Time
		Chance float64
	}
)

// The kinds of timers.
const (
	Pause   TimerKind = iota // before another start
	Settle                   // after which one that does not serve is ready
	StartBy                  // within which a process that serves has to be ready
)

func (r Ref) of() Ref { return r }

// Input is what happens. Those that name a generation are about its present process.
type Input any

type (
	// Configure sets the description of the plugin. Changed means that a running process has to be replaced; the answer is about that.
	Configure struct {
		Description
		Changed bool
		Request
	}
	// Start is a request, like Replace and Stop; see package launcher.
	Start struct{ Request }
	// Replace is like Start.
	Replace struct{ Request }
	// Stop is like Start.
	Stop struct{ Request }
	// Withdraw ends a request with Err. A replacement that no other request waits for is canceled.
	Withdraw struct {
		Request
		Err error
	}
	// Remove stops the plugin for good.
	Remove struct{ Request }
	// Close reports that the host is shutting down. Err answers the requests that wait.
	Close struct{ Err error }
	// Offer makes a plugin idle that is started on demand, unless it is idle or runs.
	Offer struct{}
	// Demand is a request of a caller that needs the plugin. The answer comes when its process runs, or cannot be started.
	Demand struct{ Request }
	// Unneeded reports that the process has been idle for a while.
	Unneeded struct{ Ref }
	// Survivor reports a process that survived an earlier host. The effect is Adopt or Discard.
	Survivor struct{ Process }
	// Launched reports that the process runs, or could not be started. With Blocked, no attempt can succeed before its program changes.
	Launched struct {
		Ref
		Process
		Err     error
		Blocked bool
	}
	// Changed reports that the condition has changed that blocked a generation.
	Changed struct{ Ref }
	// Registered reports that the plugin was registered.
	Registered struct{ Ref }
	// Refused reports that the plugin was refused. With Blocked, every process is refused until something changes.
	Refused struct {
		Ref
		Err     error
		Blocked bool
	}
	// Exited reports that the process and all descendants have exited. The error is nil after a clean exit.
	Exited struct {
		Ref
		Err error
	}
	// Fired reports that a timer has expired. Needed is set if a caller waits for the plugin; see [OnDemand].
	Fired struct {
		Timer
		Needed bool
	}
	// HealthFound is news of its health, and why it is NotServing or Unresponsive, if there is more to say.
	HealthFound struct {
		Ref
		State HealthState
		Err   error
	}
	// Unfit reports that the process has to be stopped, immediately if it would not react to a request.
	Unfit struct {
		Ref
		Err    error
		AtOnce bool
	}
	// SocketLost reports that the socket of a process was removed. It is that of Socket or, behind a front, of Process.
	SocketLost struct {
		Socket  string
		Process Ref
	}
)

// Process is what the machine has to know of one.
type Process struct {
	Identity string // of the description that it is of
	PID      int
	Socket   string
}

// Effect is what is to be done.
type Effect any

type (
	// Launch starts a process. Its result is Launched.
	Launch struct{ Ref }
	// Cancel asks for the end of that attempt.
	Cancel struct{ Ref }
	// AwaitChange asks for Changed. Unwatch ends that.
	AwaitChange struct{ Ref }
	// Adopt takes the process over with which Survivor came.
	Adopt struct{ Ref }
	// Discard ends it.
	Discard struct{}
	// Watch follows the registration and the health of the process.
	Watch struct{ Ref }
	// Unwatch ends that.
	Unwatch struct{ Ref }
	// Terminate ends the process, at once if it would not heed being asked.
	Terminate struct {
		Ref
		AtOnce bool
	}
	// Release leaves the process running without this host.
	Release struct{ Ref }
	// SetTimer sets a timer.
	SetTimer struct {
		Timer
		After time.Duration
	}
	// StopTimer stops one.
	StopTimer struct{ Timer }
	// Emit tells of an event.
	Emit struct{ plugin.Event }
	// Answer ends a request with its result.
	Answer struct {
		Request
		Err error
	}
)
