package h2proxy

import "sync"

// Reason is why a budget gave nothing.
type Reason string

// The reasons.
const (
	// UserFull and Full say that the user, or all together, have as many bytes waiting as they may; calls become slower.
	UserFull Reason = "user"
	Full     Reason = "total"
	// UserCalls and Calls say that they have as many calls in progress as they may; further ones are refused.
	UserCalls Reason = "userCalls"
	Calls     Reason = "calls"
	// ConnCancels, UserCancels and Cancels say that more calls were canceled on one connection, by the user, or by all together, than may be
	// in a second; reading from the connection pauses.
	ConnCancels Reason = "connCancels"
	UserCancels Reason = "userCancels"
	Cancels     Reason = "cancels"
)

// Consequence says what it means for the calls, and what to do.
func (r Reason) Consequence() string {
	switch r {
	case UserCalls, Calls:
		return "are refused: too many are in progress; end what holds them"
	case ConnCancels, UserCancels, Cancels:
		return "are slowed down: a caller cancels too many before they are answered; stop it, or give its calls more time"
	case UserFull, Full:
	}
	return "are slowed down: too much waits for callers or plugins that do not read"
}

// Limits are what a [Budget] gives at most.
type Limits struct {
	// UserBytes and Bytes bound what waits in memory beyond the base windows, for each user and in all.
	UserBytes, Bytes int
	// UserCalls and Calls bound the calls in progress, for each user and in all. The privileged are counted and not bounded.
	UserCalls, Calls int
	// Leaving bounds the connections to plugins that only have calls to end, of all but plugins of the privileged; zero for no bound.
	Leaving int
	// Cancels bounds the calls that are canceled; the zero value does not.
	Cancels CancelRates
}

// DefaultLimits let a user's calls have base windows of 64 MiB together, in chunks of 128 MiB (see baseWindow), and 16 MiB beside them.
var DefaultLimits = Limits{
	UserBytes: 16 << 20, Bytes: 48 << 20, UserCalls: 2048, Calls: 4096, Cancels: CancelRates{Conn: 200, User: 200, All: 400},
}

// Budget is what the calls of all connections share. It is safe for concurrent use.
type Budget struct {
	limits  Limits
	self    uint32
	refused func(uid uint32, why Reason, first bool)

	mu     sync.Mutex
	byUser map[uint32]*use
	all    use
	// leaving is how many connections only have calls to end.
	leaving int
	// canceled has the users who canceled calls a short time ago.
	canceled map[uint32]*userCancels
}

// use is what one user has, or all.
type use struct {
	bytes, calls int
	// told has the reasons that were reported, until less than half is in use.
	told map[Reason]bool
}

// NewBudget returns a budget of a program that runs as user self. That one and root are privileged. Refused is called for everything that
// it does not give, with whether that is news; it must not block.
func NewBudget(limits Limits, self uint32, refused func(uid uint32, why Reason, first bool)) *Budget {
	return &Budget{
		limits: limits, self: self, refused: refused, byUser: map[uint32]*use{}, all: use{told: map[Reason]bool{}},
		canceled: map[uint32]*userCancels{},
	}
}

func (b *Budget) privileged(uid uint32) bool { return uid == 0 || uid == b.self }

// Bytes returns how many bytes are given.
func (b *Budget) Bytes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.bytes
}

func (b *Budget) of(uid uint32) *use {
	u := b.byUser[uid]
	if u == nil {
		u = &use{told: map[Reason]bool{}}
		b.byUser[uid] = u
	}
	return u
}

// take gives n bytes to a user, and says whether it did. A quarter of all is kept for the privileged. There is always room for nothing.
func (b *Budget) take(uid uint32, n int) bool {
	if n == 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.limits.Bytes
	if !b.privileged(uid) {
		most -= most / 4
	}
	u := b.of(uid)
	switch {
	case u.bytes+n > b.limits.UserBytes:
		b.refuse(uid, u, UserFull)
		return false
	case b.all.bytes+n > most:
		b.refuse(uid, &b.all, Full)
		return false
	}
	u.bytes += n
	b.all.bytes += n
	return true
}

// tight says whether a user had better give back what it does not need.
func (b *Budget) tight(uid uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of(uid).bytes > b.limits.UserBytes/4*3 || b.all.bytes > b.limits.Bytes/2
}

func (b *Budget) give(uid uint32, n int) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(uid).bytes -= n
	b.all.bytes -= n
	b.settle(uid)
}

// begin counts a call, unless there are too many; then it says which.
func (b *Budget) begin(uid uint32) (why Reason, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.of(uid)
	if !b.privileged(uid) {
		switch {
		case u.calls >= b.limits.UserCalls:
			b.refuse(uid, u, UserCalls)
			return UserCalls, false
		case b.all.calls >= b.limits.Calls:
			b.refuse(uid, &b.all, Calls)
			return Calls, false
		}
		b.all.calls++
	}
	u.calls++
	return "", true
}

func (b *Budget) end(uid uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.privileged(uid) {
		b.all.calls--
	}
	b.of(uid).calls--
	b.settle(uid)
}

// beginLeaving counts a connection to a plugin of a user that only has calls to end, unless there are too many.
func (b *Budget) beginLeaving(owner uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.privileged(owner) {
		return true
	}
	if b.limits.Leaving > 0 && b.leaving >= b.limits.Leaving {
		return false
	}
	b.leaving++
	return true
}

func (b *Budget) endLeaving(owner uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.privileged(owner) {
		b.leaving--
	}
}

// Begin counts a call of a user until end is called. The error is the status of a call that is one too many.
func (b *Budget) Begin(uid uint32) (end func(), err error) {
	if why, ok := b.begin(uid); !ok {
		return nil, tooManyCalls(why)
	}
	return func() { b.end(uid) }, nil
}

// Held is what a budget has given for one thing that is held whole. One goroutine at a time uses it.
type Held struct {
	budget *Budget
	uid    uint32
	bytes  int
}

// Hold returns what counts to a user, nothing yet.
func (b *Budget) Hold(uid uint32) *Held { return &Held{budget: b, uid: uid} }

// Take takes n bytes more. The error is a status that says what to do.
func (h *Held) Take(n int) error {
	if !h.budget.take(h.uid, n) {
		return statusOfEnd(errNoRoom)
	}
	h.bytes += n
	return nil
}

// Give gives all of it back.
func (h *Held) Give() {
	h.budget.give(h.uid, h.bytes)
	h.bytes = 0
}

// refuse reports a refusal; b.mu is held.
func (b *Budget) refuse(uid uint32, u *use, why Reason) {
	first := !u.told[why]
	u.told[why] = true
	b.refused(uid, why, first)
}

// settle forgets what is over; b.mu is held.
func (b *Budget) settle(uid uint32) {
	forget := func(u *use, bytes, calls int, full, many Reason) {
		if u.bytes <= bytes/2 {
			delete(u.told, full)
		}
		if u.calls <= calls/2 {
			delete(u.told, many)
		}
	}
	u := b.byUser[uid]
	forget(u, b.limits.UserBytes, b.limits.UserCalls, UserFull, UserCalls)
	forget(&b.all, b.limits.Bytes, b.limits.Calls, Full, Calls)
	if u.bytes == 0 && u.calls == 0 {
		delete(b.byUser, uid)
	}
}
