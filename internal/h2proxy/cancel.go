package h2proxy

import (
	"context"
	"maps"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// CancelRates are how many calls that have no answer yet may be canceled in a second: on one connection, by one user, and by all users
// together, except the privileged. Users who cancel calls at the same time have equal shares of All, and so have the connections of a user
// of what the user may cancel. In the first second it may be several times as many. A connection that exceeds its rate or share is not read
// from until they allow it; one that does not is never slowed down by others.
//
// Two small frames make a call and cancel it, and cost the proxy and the plugin much more than their sender. A caller that waits for
// answers cannot make more calls than are answered; one that cancels them can. The rates are low enough for a machine ten times slower
// than one on which such a call costs 0.3 ms of a processor.
type CancelRates struct{ Conn, User, All int }

// longestPause bounds what calls that are canceled together, such as by their deadlines while a plugin hangs, cost their caller.
const longestPause = 5 * time.Second

// calm is the time without a pause after which the next pause of a user is reported as the first.
const calm = time.Minute

// cancels is how many calls were canceled lately.
type cancels struct {
	until time.Time // when the rate allows all of them
}

// userCancels is what one user canceled lately, and on which connections.
type userCancels struct {
	cancels

	paused time.Time // when one of the connections last exceeded its rate
	conns  map[*cancels]struct{}
}

// add adds n calls, and returns after which time the rate allows them.
func (c *cancels) add(now time.Time, n, rate int) time.Duration {
	if c.until.Before(now) {
		c.until = now
	}
	c.until = c.until.Add(time.Duration(n) * time.Second / time.Duration(rate))
	if longest := now.Add(time.Second + longestPause); c.until.After(longest) {
		c.until = longest
	}
	return c.until.Sub(now) - time.Second
}

// cancel counts n calls of a user that were canceled on a connection, and returns for how long that is not to be read from.
func (b *Budget) cancel(on *cancels, uid uint32, n int) time.Duration {
	rates := b.cancels
	if rates.Conn == 0 || n == 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(b.canceled, func(_ uint32, c *userCancels) bool { return c.until.Before(now) && now.Sub(c.paused) > calm })
	of := b.canceled[uid]
	if of == nil {
		of = &userCancels{conns: map[*cancels]struct{}{}}
		b.canceled[uid] = of
	}
	maps.DeleteFunc(of.conns, func(c *cancels, _ struct{}) bool { return c.until.Before(now) })
	of.conns[on] = struct{}{}
	rate, why := rates.User, UserCancels
	if share := b.cancelShare(uid, now); share < rate {
		rate, why = share, Cancels
	}
	if of.add(now, n, rate) <= 0 {
		why = ConnCancels
	}
	pause := on.add(now, n, max(min(rates.Conn, rate/len(of.conns)), 1))
	if pause <= 0 {
		return 0
	}
	b.refused(uid, why, now.Sub(of.paused) > calm)
	of.paused = now
	return pause
}

// cancelShare returns the share of a user in the rate of all; b.mu is held.
func (b *Budget) cancelShare(uid uint32, now time.Time) int {
	if b.privileged(uid) {
		return math.MaxInt
	}
	users := 1
	for other, c := range b.canceled {
		if other != uid && !b.privileged(other) && c.until.After(now) {
			users++
		}
	}
	return max(b.cancels.All/users, 1)
}

// owed returns for how long a new connection of a user is not to be read from, because of calls on earlier ones.
func (b *Budget) owed(uid uint32) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if of := b.canceled[uid]; of != nil {
		return time.Until(of.until) - time.Second
	}
	return 0
}

// canceled counts n calls that ended without an answer because of their caller; mu is held.
func (c *conn) canceled(n int) {
	if c.client {
		return
	}
	if pause := c.budget.cancel(&c.cancels, c.uid, n); pause > 0 {
		c.resume = time.Now().Add(pause)
	}
}

// unanswered returns how many calls in progress have no answer yet; mu is held.
func (c *conn) unanswered() (n int) {
	for _, s := range c.streams {
		if !s.answered {
			n++
		}
	}
	return n
}

// pause waits for a time, or until the connection has ended.
func (c *conn) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ended:
	}
}

// Brake is a connection to an HTTP server on which calls are made. Reading from it pauses when too many of them were canceled, and while
// the handlers of maxUnfinished calls that were reset have not ended: a machine that is too slow for the rates ends them late.
type Brake struct {
	net.Conn

	closing sync.Once
	closed  chan struct{}
	resume  atomic.Int64 // no read before, in nanoseconds of Unix time
	cancels cancels      // guarded by the mutex of the budget

	mu         sync.Mutex
	changed    sync.Cond // unfinished has changed, or the connection was closed
	unfinished int       // calls that were reset and whose handlers have not ended; below zero for a moment if a handler ends first
}

// maxUnfinished is reached for a moment only on a machine that keeps up.
const maxUnfinished = 16

// Brake returns a connection of a user, which the caller of the HTTP server attaches to the context of its requests with [Brake.Attach].
func (b *Budget) Brake(nc net.Conn, uid uint32) *Brake {
	brake := &Brake{Conn: nc, closed: make(chan struct{})}
	brake.changed.L = &brake.mu
	brake.pause(b.owed(uid))
	return brake
}

func (b *Brake) pause(d time.Duration) {
	if d > 0 {
		b.resume.Store(time.Now().Add(d).UnixNano())
	}
}

// addUnfinished counts n more calls that were reset and whose handlers have not ended.
func (b *Brake) addUnfinished(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unfinished += n
	b.changed.Broadcast()
}

// awaitFinished blocks while too many handlers of calls that were reset have not ended, or until the connection is closed.
func (b *Brake) awaitFinished() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.unfinished >= maxUnfinished {
		select {
		case <-b.closed:
			return
		default:
			b.changed.Wait()
		}
	}
}

// Read implements [net.Conn].
func (b *Brake) Read(data []byte) (int, error) {
	b.awaitFinished()
	if resume := b.resume.Swap(0); resume != 0 {
		timer := time.NewTimer(time.Until(time.Unix(0, resume)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-b.closed:
		}
	}
	return b.Conn.Read(data)
}

// Close implements [net.Conn].
func (b *Brake) Close() error {
	b.closing.Do(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		close(b.closed)
		b.changed.Broadcast()
	})
	return b.Conn.Close()
}

type brakeKey struct{}

// Attach returns a context for the requests on the connection.
func (b *Brake) Attach(ctx context.Context) context.Context {
	return context.WithValue(ctx, brakeKey{}, b)
}
