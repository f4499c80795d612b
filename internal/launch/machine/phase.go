package machine

import (
	"slices"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Phase is the phase of a generation. A generation is a sequence of processes of a launched plugin: it begins with a start, or a
// replacement, and ends when it is stopped or replaced. In between, processes that fail are restarted.
type Phase uint8

// The phases of a generation.
const (
	// Wanted: it waits until the earlier processes have ended.
	Wanted Phase = iota + 1
	// Starting: its program is being checked and executed.
	Starting
	// Started: its process runs and is not ready yet.
	Started
	// Adopted: the same, with a process that survived an earlier host.
	Adopted
	// Ready: it does not serve, and has run for a short time.
	Ready
	// Serving: it serves, and is registered.
	Serving
	// Lost: it serves, but its socket was removed, so it is being replaced.
	Lost
	// Failing: it is unfit, and is being stopped, to be started again.
	Failing
	// Replaced: a newer generation has replaced it, and it is being stopped.
	Replaced
	// Stopping: it is being stopped, and is not started again.
	Stopping
	// BackingOff: its process has ended or could not be started, and is started again after a pause.
	BackingOff
	// GivenUp: its processes have ended too often. It is started again only on request.
	GivenUp
	// Blocked: it cannot be started before its program changes, or registered before its type has a handler.
	Blocked
	// Idle: it has no process, and is started on demand.
	Idle
	// Surviving: its host has ended, and its process keeps running.
	Surviving
	// Over: it has no process and will not start one.
	Over
)

// phases are the names of the phases and the states that operators see.
var phases = [...]struct {
	name  string
	shown plugin.State
}{
	{"new", plugin.StateStarting}, {"wanted", plugin.StateStarting}, {"starting", plugin.StateStarting},
	{"started", plugin.StateStarting}, {"adopted", plugin.StateStarting},
	{"ready", plugin.StateRunning}, {"serving", plugin.StateRunning}, {"lost", plugin.StateUnlinked},
	{"failing", plugin.StateStopping}, {"replaced", plugin.StateStopping}, {"stopping", plugin.StateStopping},
	{"backing off", plugin.StateBackoff}, {"given up", plugin.StateFailed}, {"blocked", plugin.StateBlocked},
	{"idle", plugin.StateIdle}, {"surviving", plugin.StateStopped}, {"over", plugin.StateStopped},
}

func (p Phase) String() string { return phases[p].name }

// runs reports whether there is a process that is not being stopped.
func (p Phase) runs() bool { return p >= Started && p <= Lost }

// rests reports whether there is no process and none is started without an input from outside.
func (p Phase) rests() bool { return p >= GivenUp }

// Cause is why a generation enters a phase.
type Cause uint8

// The causes.
const (
	ByStart       Cause = iota + 1 // it was started, or configured
	ByDemand                       // a caller needs it
	ByRestart                      // another process was requested, or the configuration has changed
	ByStop                         // it was stopped, or removed from the configuration
	ByClose                        // its host is shutting down
	BySurvivor                     // a process that survived an earlier host was reached
	ByTurn                         // the earlier processes have ended
	ByLaunch                       // its process runs, or could not be started
	ByReadiness                    // it was registered
	ByReplacement                  // the newer generation is ready, or has failed
	ByExit                         // its process and all descendants have exited
	ByTimer                        // a timer of its own fired
	ByUnfitness                    // it does not answer
	BySocketLoss                   // its socket was removed
	ByOffer                        // it was made idle, to be started on demand
	ByIdleness                     // it had no calls for a while
	ByChange                       // the cause of Blocked has changed
)

var causeNames = [...]string{
	"", "start", "demand", "restart", "stop", "host's end", "survivor", "turn", "launch returned", "registered", "replacement", "exit",
	"timer", "unfit", "socket removed", "offer", "idleness", "change",
}

func (c Cause) String() string { return causeNames[c] }

// Transition is one step of a generation from phase to phase.
type Transition struct {
	From Phase // zero: it is new
	On   Cause
	To   Phase
}

// Row is a transition that the phases in From have in common.
type Row struct {
	From []Phase // nil: the generation is new
	On   Cause
	If   string // the condition, if rows with other results have the same From and On
	To   Phase
}

// Has reports whether the row contains a transition.
func (r Row) Has(t Transition) bool {
	return r.On == t.On && r.To == t.To && (slices.Contains(r.From, t.From) || r.From == nil && t.From == 0)
}

var (
	unready = []Phase{Started, Adopted}
	up      = []Phase{Started, Adopted, Ready, Serving, Lost}
	exiting = append(up[:len(up):len(up)], Failing)
	waiting = []Phase{Wanted, BackingOff, GivenUp, Blocked, Idle}
	one     = func(p Phase) []Phase { return []Phase{p} }
)

// Table is all transitions.
var Table = []Row{
	{nil, ByStart, "", Starting},
	{nil, ByStart, "an earlier process of it has not ended", Wanted},
	{nil, ByRestart, "the old one keeps running meanwhile, or there is none", Starting},
	{nil, ByRestart, "the old one must end first: it does not serve, or is recreated", Wanted},
	{nil, BySurvivor, "", Adopted},
	{nil, ByOffer, "", Idle},
	{one(Idle), ByDemand, "", Starting},
	{one(Idle), ByDemand, "an earlier process of it has not ended", Wanted},
	{one(Serving), ByIdleness, "", Stopping},
	{one(Wanted), ByTurn, "", Starting},

	{one(Starting), ByLaunch, "its process runs", Started},
	{one(Starting), ByLaunch, "it could not be started, and is tried again; or its program is still open for writing", BackingOff},
	{one(Starting), ByLaunch, "it could not be started too often", GivenUp},
	{one(Starting), ByLaunch, "it cannot be started before its program changes", Blocked},
	{one(Starting), ByLaunch, "it could not be started, and its policy rules out another start, or it is a replacement", Over},
	{unready, ByReadiness, "", Serving},
	{unready, ByTimer, "it does not serve", Ready},
	{exiting, ByExit, "it will be restarted", BackingOff},
	{exiting, ByExit, "it ended too often", GivenUp},
	{append(unready[:len(unready):len(unready)], Failing), ByExit, "it cannot be registered before its type has a handler", Blocked},
	{
		append(exiting[:len(exiting):len(exiting)], Replaced, Stopping), ByExit,
		"it was being stopped, its policy rules out another start, or it is a replacement", Over,
	},
	{one(Serving), BySocketLoss, "", Lost},
	{[]Phase{Started, Serving}, ByUnfitness, "", Failing},
	{one(BackingOff), ByTimer, "", Starting},
	{one(BackingOff), ByTimer, "nobody needs it", Over},
	{one(Blocked), ByChange, "", Starting},
	{[]Phase{BackingOff, GivenUp, Blocked}, ByStart, "", Starting},
	{[]Phase{BackingOff, GivenUp, Blocked}, BySurvivor, "", Adopted},

	{[]Phase{Starting, Started, Adopted, Serving, Lost, Failing}, ByReplacement, "the newer one is ready", Replaced},
	{[]Phase{Starting, Started}, ByReplacement, "it is the newer one, and was refused or took too long", Stopping},
	{one(Lost), ByReplacement, "the newer one did not become ready", Failing},
	{[]Phase{BackingOff, GivenUp, Blocked}, ByReplacement, "the newer one is ready, or it is the newer one and took too long", Over},

	{append(exiting[:len(exiting):len(exiting)], Starting), ByStop, "", Stopping},
	{[]Phase{Starting, Started, Ready, Serving, Lost, Failing}, ByClose, "it does not survive, or is not up", Stopping},
	{up, ByClose, "it survives", Surviving},
	{
		append(exiting[:len(exiting):len(exiting)], Starting), ByRestart, "it ends before the new one: it does not serve, or is recreated",
		Stopping,
	},
	{waiting, ByStop, "", Over},
	{waiting, ByClose, "", Over},
	{[]Phase{BackingOff, GivenUp, Blocked, Idle}, ByRestart, "a new one begins", Over},

	{[]Phase{Replaced, Stopping}, ByLaunch, "it could not be started", Over},
}
