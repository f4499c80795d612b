package machine

// Phase is the phase of one instance. It does not include whether the handler has the instance, which its lane knows, nor whether the
// registry has it. So a registered instance that is asked again is in the phase of that attempt.
type Phase string

// The phases of an instance.
const (
	// Created: it has just been created.
	Created Phase = "new"
	// Restored: it was restored after a restart, and its socket has not been seen yet.
	Restored Phase = "restored"
	// Asking: it waits to be asked who it is, or is being asked.
	Asking Phase = "asking"
	// Ready: it has answered and waits for its lane.
	Ready Phase = "ready"
	// Walking: its lane registers it: with its handler, in the registry, and with the plugin itself.
	Walking Phase = "walking"
	// Telling: it is being sent a refusal.
	Telling Phase = "telling"
	// Waiting: its last attempt failed, and another is scheduled.
	Waiting Phase = "waiting"
	// Refused: there is no handler for its type. It waits until there is one.
	Refused Phase = "refused"
	// Registered: its handler has it, the registry dispenses it, and no attempt is in progress.
	Registered Phase = "registered"
	// Superseded: it has answered, and is the standby of a newer instance or waits to be asked again.
	Superseded Phase = "superseded"
	// Missing: its socket is not where it was; it may have moved.
	Missing Phase = "missing"
	// Lost: its socket or endpoint does not accept connections, and its grace period runs.
	Lost Phase = "lost"
	// Gone: it never comes back. A socket that still exists gets a new instance.
	Gone Phase = "gone"
)

// Cause is why an instance enters a phase.
type Cause string

// The causes.
const (
	ByAppearance Cause = "socket appeared"
	ByMove       Cause = "socket moved"
	ByLoss       Cause = "socket went"       // its socket was removed, replaced or is no longer trusted, or another plugin answers on it
	ByAnswer     Cause = "answered"          // it answered, or could not be asked
	ByTurn       Cause = "lane's turn"       // its lane is ready for it
	ByResult     Cause = "call returned"     // a call by its lane has returned
	ByDelivery   Cause = "refusal delivered" // it has received its refusal
	ByTimer      Cause = "timer"             // one of its timers fired
	ByProbe      Cause = "nobody accepts"
	ByHandler    Cause = "handler changed"  // the handler for its type was set or removed
	ByOperator   Cause = "operator"         // an operator requested another attempt, or the configuration was reloaded
	ByRival      Cause = "another one left" // another instance of its name went away or became unreachable
)

// Row is one transition.
type Row struct {
	From Phase
	On   Cause
	If   string // the condition, if other rows have the same From and On
	To   Phase
}

// Table lists all transitions, except those to Gone: see [Leaving].
var Table = []Row{
	{Created, ByAppearance, "", Asking},
	{Created, ByLoss, "a living instance gave way to a new one on its socket", Asking},
	{Created, ByAnswer, "another process or plugin answers on a known socket", Asking},
	{Restored, ByAppearance, "", Asking},

	{Asking, ByAnswer, "it may register", Ready},
	{Asking, ByAnswer, "what it announces is not allowed", Telling},
	{Asking, ByAnswer, "GetInfo failed", Waiting},
	{Asking, ByAnswer, "there is no handler, and such plugins are left alone", Refused},
	{Asking, ByAnswer, "its socket is gone, and it had answered before", Missing},
	{Asking, ByAnswer, "nobody accepts, it is registered, and there is a grace period", Lost},

	{Ready, ByTurn, "it is the newest", Walking},
	{Ready, ByTurn, "a newer one is registered", Superseded},
	{Ready, ByTurn, "there is no handler", Telling},
	{Ready, ByTurn, "there is no handler, and such plugins are left alone", Refused},

	{Walking, ByResult, "registered, saved and notified", Registered},
	{Walking, ByResult, "it was refused", Telling},
	{Walking, ByResult, "not yet, or it could not be saved or notified", Waiting},

	{Telling, ByDelivery, "", Waiting},
	{Telling, ByDelivery, "there is no handler", Refused},
	{Telling, ByDelivery, "there is a handler by now, or somebody asked for another attempt", Asking},

	{Waiting, ByTimer, "", Asking},
	{Waiting, ByTurn, "the handler was removed", Refused},
	{Waiting, ByMove, "", Asking},
	{Waiting, ByHandler, "", Asking},
	{Waiting, ByOperator, "", Asking},
	{Waiting, ByRival, "", Asking},
	{Waiting, ByProbe, "its socket is gone", Missing},
	{Waiting, ByProbe, "it is registered, and there is a grace period", Lost},

	{Refused, ByHandler, "there is one", Asking},
	{Refused, ByMove, "", Asking},
	{Refused, ByOperator, "", Asking},

	{Registered, ByMove, "", Asking},
	{Registered, ByTurn, "its handler has another endpoint for it", Asking},
	{Registered, ByResult, "it is kept although it could not be notified", Waiting},
	{Registered, ByResult, "the handler got a newer one, or was changed", Superseded},
	{Registered, ByProbe, "its socket is gone", Missing},
	{Registered, ByProbe, "there is a grace period", Lost},

	{Superseded, ByTurn, "it is the newest one left", Asking},
	{Superseded, ByTurn, "the handler was removed", Refused},
	{Superseded, ByMove, "it is checked again", Asking},
	{Superseded, ByProbe, "its socket is gone", Missing},
	{Superseded, ByProbe, "it is registered, and there is a grace period", Lost},

	{Missing, ByMove, "it was found", Asking},
	{Missing, ByTimer, "for a last look", Asking},
	{Missing, ByTurn, "the handler was removed", Refused},
	{Lost, ByMove, "", Asking},
	{Lost, ByTurn, "the handler was removed", Refused},
}

// Leaving are the causes of a transition to Gone, from any phase: the socket disappeared, a probe or dial was refused, another plugin
// answered, or a grace period ended.
var Leaving = []Cause{ByLoss, ByAnswer, ByProbe, ByTimer}
