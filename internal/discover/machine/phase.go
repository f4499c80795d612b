package machine

// Phase is where one instance is. That the handler has an instance and that the registry does are facts of their own, with owners of their
// own: the lane and the record. An instance that its handler has and that is asked anew is in the phase of the attempt.
type Phase uint8

// The phases of an instance.
const (
	// Restored: it is remembered from before a restart, and its socket has not been seen yet.
	Restored Phase = iota + 1
	// Asking: it waits to be asked who it is, or is being asked.
	Asking
	// Ready: it has answered and waits for its turn in its lane.
	Ready
	// Walking: its lane walks it through its handler, the registry and the plugin itself.
	Walking
	// Telling: it is being told that it is refused.
	Telling
	// Waiting: its last attempt failed, and the next one is due.
	Waiting
	// Refused: there is no handler for it. It rests until there is one.
	Refused
	// Registered: the handler has it, the registry gives it out, and nothing is under way.
	Registered
	// Superseded: it has answered, and rests behind a newer instance or until it is asked again.
	Superseded
	// Missing: its socket is not where it was, and it is not known yet whether it moved.
	Missing
	// Lost: nobody accepts on its socket or endpoint, and it is kept for a grace.
	Lost
	// Gone: it never comes back. A socket that lives on gets a new instance.
	Gone
)

var phaseNames = [...]string{
	Restored: "restored", Asking: "asking", Ready: "ready", Walking: "walking", Telling: "telling", Waiting: "waiting", Refused: "refused",
	Registered: "registered", Superseded: "superseded", Missing: "missing", Lost: "lost", Gone: "gone",
}

func (p Phase) String() string {
	if p == 0 {
		return "new"
	}
	return phaseNames[p]
}

// Cause is why an instance enters a phase.
type Cause uint8

// The causes.
const (
	ByAppearance Cause = iota + 1 // its socket appeared
	ByMove                        // its socket is in another place
	ByLoss                        // its socket was removed, replaced or is not trusted any more; or it is another plugin now
	ByAnswer                      // it answered, or could not be asked
	ByTurn                        // its lane has come to it
	ByResult                      // a call of its lane has returned
	ByDelivery                    // it was told of its refusal
	ByTimer                       // a timer of its own fired
	ByProbe                       // nobody accepted a connection
	ByHandler                     // the handler for its type was set or removed
	ByOperator                    // somebody asked for another attempt, or what judges plugins has changed
	ByRival                       // another instance of its name left, or is out of reach
)

var causeNames = [...]string{
	ByAppearance: "socket appeared", ByMove: "socket moved", ByLoss: "socket went", ByAnswer: "answered", ByTurn: "lane's turn",
	ByResult: "call returned", ByDelivery: "refusal delivered", ByTimer: "timer", ByProbe: "nobody accepts", ByHandler: "handler changed",
	ByOperator: "operator", ByRival: "another one left",
}

func (c Cause) String() string { return causeNames[c] }

// Row is one transition.
type Row struct {
	From Phase // zero: the instance is new
	On   Cause
	If   string // says when this row is the one that is taken, where others begin alike
	To   Phase
}

// Table is all transitions. An instance that goes is not listed for each phase: see [Leaving].
var Table = []Row{
	{0, ByAppearance, "", Asking},
	{0, ByLoss, "a living instance gave way to a new one on its socket", Asking},
	{0, ByAnswer, "another process or plugin answers on a known socket", Asking},
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
