package h2proxy

import (
	"cmp"
	"math"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/quota"
)

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
	// UserCalls and Calls bound the calls in progress, for each user and in all. Those of the privileged are not counted.
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
	bytes, calls *quota.Pool
	leaving      *quota.Pool // connections to plugins that only have calls to end, by the owner of the plugin
	cancels      CancelRates
	privileged   func(uid uint32) bool
	refused      func(uid uint32, why Reason, first bool)

	mu sync.Mutex
	// canceled has the users who canceled calls a short time ago.
	canceled map[uint32]*userCancels
}

// NewBudget returns a budget of a program that runs as user self. That user and root are privileged: a quarter of the bytes is reserved for
// them. Refused is called for everything that the budget does not give, with whether it is the first refusal of the user since the user
// had half; it must not block.
func NewBudget(limits Limits, self uint32, refused func(uid uint32, why Reason, first bool)) *Budget {
	privileged := func(uid uint32) bool { return uid == 0 || uid == self }
	leaving := cmp.Or(limits.Leaving, math.MaxInt)
	return &Budget{
		bytes:   quota.New(quota.Limits{User: limits.UserBytes, Total: limits.Bytes, Reserve: limits.Bytes / 4}, privileged),
		calls:   quota.New(quota.Limits{User: limits.UserCalls, Total: limits.Calls}, privileged),
		leaving: quota.New(quota.Limits{User: leaving, Total: leaving}, privileged),
		cancels: limits.Cancels, privileged: privileged, refused: refused, canceled: map[uint32]*userCancels{},
	}
}

// Bytes returns how many bytes are given.
func (b *Budget) Bytes() int { return b.bytes.Sum() }

// take gives n bytes to a user, and reports whether it did.
func (b *Budget) take(uid uint32, n int) bool { return b.hasBytes(uid, b.bytes.Take(uid, n)) }

func (b *Budget) give(uid uint32, n int) { b.bytes.Release(uid, n) }

// hasBytes reports whether bytes were given, and calls refused if they were not.
func (b *Budget) hasBytes(uid uint32, refusal *quota.Refusal) bool {
	switch {
	case refusal == nil:
		return true
	case refusal.Reason == quota.User:
		b.refused(uid, UserFull, refusal.First)
	default:
		b.refused(uid, Full, refusal.First)
	}
	return false
}

// isTight reports whether a user should give back what it does not need.
func (b *Budget) isTight(uid uint32) bool {
	user, all := b.bytes.Usage(uid)
	return user > b.bytes.Limits().User/4*3 || all > b.bytes.Limits().Total/2
}

// begin counts a call until end. The error is the status of a call that is one too many.
func (b *Budget) begin(uid uint32) error {
	refusal := b.calls.Take(uid, 1)
	if refusal == nil {
		return nil
	}
	why := Calls
	if refusal.Reason == quota.User {
		why = UserCalls
	}
	b.refused(uid, why, refusal.First)
	return status.Errorf(codes.ResourceExhausted, "too many calls are in progress (%s); call again later", why)
}

func (b *Budget) end(uid uint32) { b.calls.Release(uid, 1) }

// Begin counts a call of a user until end is called. The error is the status of a call that is one too many.
func (b *Budget) Begin(uid uint32) (end func(), err error) {
	if err := b.begin(uid); err != nil {
		return nil, err
	}
	return func() { b.end(uid) }, nil
}

// Held is what a budget has given for one thing that is held whole.
type Held struct {
	budget *Budget
	uid    uint32
	grant  *quota.Grant
}

// Hold returns what counts to a user, nothing yet.
func (b *Budget) Hold(uid uint32) *Held { return &Held{b, uid, b.bytes.Grant(uid)} }

// Take takes n bytes more. The error is a status that says what to do.
func (h *Held) Take(n int) error {
	if !h.budget.hasBytes(h.uid, h.grant.Take(n)) {
		return statusOfEnd(errNoRoom)
	}
	return nil
}

// Give gives all of it back.
func (h *Held) Give() { h.grant.Release() }
