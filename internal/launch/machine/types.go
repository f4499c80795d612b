package machine

import (
	"errors"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// The errors that answer requests.
var (
	errStopped    = errors.New("it was stopped meanwhile")
	errNotStarted = errors.New("it was stopped, and is not started on demand until somebody starts it")
	errRemoved    = errors.New("it is not launched any more")
	errEndedEarly = errors.New("it ended by itself before it was ready")
	errClean      = errors.New("it ended by itself, without an error")
	errUnlinked   = errors.New("its socket was removed, and it could not be replaced")

	errSocketRemoved = errors.New("its socket was removed")
	errNotServing    = errors.New("NOT_SERVING")
)

// Description has the settings of a plugin.
type Description struct {
	// Identity is the same for two descriptions if a process of one can be adopted for the other.
	Identity string
	// Serves means that it is ready when it is registered.
	Serves bool
	// Upgrade is how a newer process replaces an older one.
	Upgrade plugin.Upgrade
	// Survives keeps the process running when the host ends.
	Survives bool
	// Restart is the policy, which may be [OnDemand].
	Restart plugin.RestartPolicy
	// Healthy is the time from ready to exit after which the back-off is reset (default 1 min).
	Healthy time.Duration
	// StartTimeout is how long a process that serves may take from its start until it is ready (default 1 min).
	StartTimeout time.Duration
}

type (
	// Ref names a generation.
	Ref uint64
	// Request identifies a caller that waits for an Answer; zero if no caller waits.
	Request uint64
	// TimerKind is the purpose of a timer. A generation has at most one timer of each kind.
	TimerKind uint8
	// Timer identifies a timer.
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
	Pause   TimerKind = iota // the pause before the next start
	Settle                   // when it expires, a process that does not serve is ready
	StartBy                  // when it expires, a process that serves has failed to become ready
	Recover                  // when it expires, a plugin that had failed is healthy
)

func (r Ref) of() Ref { return r }

// Input is an event for the machine. An input with a Ref is about the current process of that generation.
type Input any

type (
	// Configure sets the description of the plugin. With Changed, a running process is replaced; the answer is the result of that.
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
	// Changed reports that the cause of a blocked start or registration has changed.
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
	// HealthFound reports a new serving status. Err may have details of not-serving or unresponsive.
	HealthFound struct {
		Ref
		State plugin.ServingStatus
		Err   error
	}
	// Unfit reports that the process has to be stopped, immediately if it would not react to a request.
	Unfit struct {
		Ref
		Err    error
		AtOnce bool
	}
	// SocketLost reports that the socket of a process was removed. The process is that at Socket or, behind a front, that of generation
	// Process.
	SocketLost struct {
		Socket  string
		Process Ref
	}
)

// Process describes a process.
type Process struct {
	Identity string // Identity of the Description with which it was started
	PID      int
	Socket   string
}

// Effect is an action for the caller of the machine.
type Effect any

type (
	// Launch starts a process. Its result is Launched.
	Launch struct{ Ref }
	// Cancel cancels the start of a process. Its result is still Launched.
	Cancel struct{ Ref }
	// AwaitChange waits for the input Changed, until Unwatch.
	AwaitChange struct{ Ref }
	// Adopt adopts the process of the input Survivor.
	Adopt struct{ Ref }
	// Discard stops the process of the input Survivor.
	Discard struct{}
	// Watch watches the registration and the health of the process, until Unwatch.
	Watch struct{ Ref }
	// Unwatch ends AwaitChange or Watch.
	Unwatch struct{ Ref }
	// Terminate stops the process, with AtOnce by SIGKILL.
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
	// StopTimer stops a timer.
	StopTimer struct{ Timer }
	// Emit publishes an event.
	Emit struct{ plugin.Event }
	// Answer ends a request with its result.
	Answer struct {
		Request
		Err error
	}
)
