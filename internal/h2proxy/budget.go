package h2proxy

import (
	"cmp"
	"math"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/quota"
)

// Reason is why a budget refused something or slowed it down.
type Reason string

// The reasons.
const (
	// UserFull and Full mean that the data in memory of the user, or of all users, has reached its limit; calls become slower.
	UserFull Reason = "user"
	Full     Reason = "total"
	// UserCalls and Calls mean that the calls in progress of the user, or of all users, have reached their limit; further calls are
	// refused.
	UserCalls Reason = "userCalls"
	Calls     Reason = "calls"
	// ConnCancels, UserCancels and Cancels mean that calls on one connection, of the user, or of all users were canceled at a higher rate
	// than allowed; reading from the connection pauses.
	ConnCancels Reason = "connCancels"
	UserCancels Reason = "userCancels"
	Cancels     Reason = "cancels"
)

// Consequence returns a predicate for "calls": the effect on them, and what to do.
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

// Limits are the limits of a [Budget].
type Limits struct {
	// UserBytes and Bytes bound the data in memory beyond the base windows, for each user and in total.
	UserBytes, Bytes int
	// UserCalls and Calls bound the calls in progress, for each user and in total. Calls of privileged users are not counted.
	UserCalls, Calls int
	// Leaving bounds the connections to plugins that accept no new calls and still have calls in progress; zero for no limit. Connections
	// to plugins of privileged users are not counted.
	Leaving int
	// Cancels bounds how often calls are canceled; the zero value means no limit.
	Cancels CancelRates
}

// DefaultLimits allow the calls of a user base windows of 64 MiB in total, which take 128 MiB of memory (see baseWindow), and 16 MiB more.
var DefaultLimits = Limits{
	UserBytes: 16 << 20, Bytes: 48 << 20, UserCalls: 2048, Calls: 4096, Cancels: CancelRates{Conn: 200, User: 200, All: 400},
}

// Budget bounds the memory and the number of calls of all connections that share it. It is safe for concurrent use.
type Budget struct {
	bytes, calls *quota.Pool
	leaving      *quota.Pool // see Limits.Leaving; by the owner of the plugin
	cancels      CancelRates
	privileged   func(uid uint32) bool
	refused      func(uid uint32, why Reason, first bool)

	mu sync.Mutex
	// canceled has the users who canceled calls recently.
	canceled map[uint32]*userCancels
}

// NewBudget returns a budget for a program that runs as user self. That user and root are privileged: a quarter of the bytes is reserved
// for them. The budget calls refused for each refusal; first reports whether the user's consumption was below half of the limit since the
// last one. The function must not block.
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

// Bytes returns the number of bytes that are in use.
func (b *Budget) Bytes() int { return b.bytes.Sum() }

// take counts n more bytes for a user, unless a limit is reached. It reports whether it did.
func (b *Budget) take(uid uint32, n int) bool { return b.hasBytes(uid, b.bytes.Take(uid, n)) }

func (b *Budget) give(uid uint32, n int) { b.bytes.Release(uid, n) }

// hasBytes reports whether there was no refusal, and otherwise calls b.refused.
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

// isTight reports whether the streams of a user should shrink their windows.
func (b *Budget) isTight(uid uint32) bool {
	user, all := b.bytes.Usage(uid)
	return user > b.bytes.Limits().User/4*3 || all > b.bytes.Limits().Total/2
}

// Begin counts a call of a user until end is called. If a limit is reached, the error is the status of the call.
func (b *Budget) Begin(uid uint32) (end func(), err error) {
	refusal := b.calls.Take(uid, 1)
	if refusal == nil {
		return func() { b.calls.Release(uid, 1) }, nil
	}
	why := Calls
	if refusal.Reason == quota.User {
		why = UserCalls
	}
	b.refused(uid, why, refusal.First)
	return nil, status.Errorf(codes.ResourceExhausted, "too many calls are in progress (%s); call again later", why)
}

// Held counts the bytes of one thing that is in memory as a whole, such as the metadata of a call.
type Held struct {
	budget *Budget
	uid    uint32
	grant  *quota.Grant
}

// Hold returns a Held of a user with no bytes.
func (b *Budget) Hold(uid uint32) *Held { return &Held{b, uid, b.bytes.Grant(uid)} }

// Take counts n more bytes. If a limit is reached, the error is a gRPC status.
func (h *Held) Take(n int) error {
	if !h.budget.hasBytes(h.uid, h.grant.Take(n)) {
		return statusOfEnd(errNoRoom)
	}
	return nil
}

// Give releases all bytes.
func (h *Held) Give() { h.grant.Release() }
