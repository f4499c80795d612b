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

// CancelRates limit how many unanswered calls may be canceled per second: on one connection, by one user, and by all users together except
// the privileged ones. Users who cancel calls at the same time have equal shares of All; the connections of a user have equal shares of
// the user's rate. The first second may have several times as many. If a connection exceeds its rate or share, reading from it pauses
// until the rate is met again. Other connections are not slowed down.
//
// Two small frames make and cancel a call, and cost the proxy and the plugin much more than the sender. A caller that waits for answers
// cannot make calls faster than they are answered; a caller that cancels them can. The rates fit a machine ten times slower than one on
// which such a call takes 0.3 ms of processor time.
type CancelRates struct{ Conn, User, All int }

// longestPause bounds the pause after many calls were canceled together, for example by their deadlines while a plugin hangs.
const longestPause = 5 * time.Second

// calm is the time without a pause after which the next pause of a user is reported as the first.
const calm = time.Minute

// cancels represents recently canceled calls.
type cancels struct {
	until time.Time // when the rate will allow all of them
}

// userCancels represents the recently canceled calls of a user.
type userCancels struct {
	cancels

	paused time.Time             // when one of the connections last exceeded its rate
	conns  map[*cancels]struct{} // of the connections with recently canceled calls
}

// add counts n calls, and returns the time until the rate allows them; negative or zero if it does now.
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

// cancel counts n canceled calls of a user on a connection, and returns how long reading from the connection must pause.
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

// cancelShare returns a user's share of the rate of all users; b.mu is held.
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

// cancelPause returns how long reading from a new connection of a user must pause because of canceled calls on earlier connections.
func (b *Budget) cancelPause(uid uint32) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if of := b.canceled[uid]; of != nil {
		return time.Until(of.until) - time.Second
	}
	return 0
}

// canceled counts n calls that their callers have ended without an answer; mu is held.
func (c *conn) canceled(n int) {
	if c.client {
		return
	}
	if pause := c.budget.cancel(&c.cancels, c.uid, n); pause > 0 {
		c.resume = time.Now().Add(pause)
	}
}

// sleep blocks for d, or until stop is closed.
func sleep(d time.Duration, stop <-chan struct{}) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stop:
	}
}

// Brake is a connection of an HTTP server with an [HTTPHandler]. Reading from it pauses when too many calls were canceled, and while
// handlers of maxUnfinished reset calls are still running, which happens on a machine that is too slow for the rates.
type Brake struct {
	net.Conn

	closing sync.Once
	closed  chan struct{}
	resume  atomic.Int64 // Unix time in nanoseconds before which nothing is read
	cancels cancels      // guarded by the mutex of the budget

	mu         sync.Mutex
	changed    sync.Cond // unfinished has changed, or the connection was closed
	unfinished int       // reset calls whose handlers are still running; briefly negative if a handler returns before the reset is counted
}

// maxUnfinished is reached only briefly on a machine that is fast enough.
const maxUnfinished = 16

// Brake wraps a connection of a user. The HTTP server must attach it to the contexts of the connection's requests with [Brake.Attach].
func (b *Budget) Brake(nc net.Conn, uid uint32) *Brake {
	brake := &Brake{Conn: nc, closed: make(chan struct{})}
	brake.changed.L = &brake.mu
	brake.pause(b.cancelPause(uid))
	return brake
}

func (b *Brake) pause(d time.Duration) {
	if d > 0 {
		b.resume.Store(time.Now().Add(d).UnixNano())
	}
}

// addUnfinished adds n to the number of reset calls whose handlers are still running.
func (b *Brake) addUnfinished(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unfinished += n
	b.changed.Broadcast()
}

// awaitFinished blocks while too many handlers of reset calls are running and the connection is open.
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
		sleep(time.Until(time.Unix(0, resume)), b.closed)
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

// Attach returns a context for requests on the connection.
func (b *Brake) Attach(ctx context.Context) context.Context {
	return context.WithValue(ctx, brakeKey{}, b)
}
