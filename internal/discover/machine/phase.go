package machine

// Phase is where one instance is. That the handler has an instance and that the registry does are facts of their own, with owners of their
// own: the lane and the record. An instance that its handler has and that is asked anew is in the phase of the attempt.
type Phase string

// The phases of an instance.
const (
	// Created: nothing was done about it yet.
	Created Phase = "new"
	// Restored: it is remembered from before a restart, and its socket has not been seen yet.
	Restored Phase = "restored"
	// Asking: it waits to be asked who it is, or is being asked.
	Asking Phase = "asking"
	// Ready: it has answered and waits for its turn in its lane.
	Ready Phase = "ready"
	// Walking: its lane walks it through its handler, the registry and the plugin itself.
	Walking Phase = "walking"
	// Telling: it is being told that it is refused.
	Telling Phase = "telling"
	// Waiting: its last attempt failed, and the next one is due.
	Waiting Phase = "waiting"
	// Refused: there is no handler for it. It rests until there is one.
	Refused Phase = "refused"
	// Registered: the handler has it, the registry gives it out, and nothing is under way.
	Registered Phase = "registered"
	// Superseded: it has answered, and rests behind a newer instance or until it is asked again.
	Superseded Phase = "superseded"
	// Missing: its socket is not where it was, and it is not known yet whether it moved.
	Missing Phase = "missing"
	// Lost: nobody accepts on its socket or endpoint, and it is kept for a grace.
	Lost Phase = "lost"
	// Gone: it never comes back. A socket that lives on gets a new instance.
	Gone Phase = "gone"
)

// Cause is why an instance enters a phase.
type Cause string

// The causes.
const (
	ByAppearance Cause = "socket appeared"
	ByMove       Cause = "socket moved"      // its socket is in another place
	ByLoss       Cause = "socket went"       // its socket was removed, replaced or is not trusted any more; or it is another plugin now
	ByAnswer     Cause = "answered"          // it answered, or could not be asked
	ByTurn       Cause = "lane's turn"       // its lane has come to it
	ByResult     Cause = "call returned"     // a call of its lane has returned
	ByDelivery   Cause = "refusal delivered" // it was told of its refusal
	ByTimer      Cause = "timer"             // a timer of its own fired
	ByProbe      Cause = "nobody accepts"
	ByHandler    Cause = "handler changed"  // the handler for its type was set or removed
	ByOperator   Cause = "operator"         // somebody asked for another attempt, or what judges plugins has changed
	ByRival      Cause = "another one left" // another instance of its name left, or is out of reach
)

// Row is one transition.
type Row struct {
	From Phase
	On   Cause
	If   string // says when this row is the one that is taken, where others begin alike
	To   Phase
}

// Table is all transitions. An instance that goes is not listed for each phase: see [Leaving].
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

// Leaving are the causes by which an instance goes, from whatever phase: its socket went, a probe or a dial found nobody, it answers as
// somebody else, or the time ran out in which it might have come back.
var Leaving = []Cause{ByLoss, ByAnswer, ByProbe, ByTimer}
