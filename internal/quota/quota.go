// Package quota limits how much of one thing users hold: each user, and all users together. Neither one user nor many together can take
// what others need.
//
// A [Pool] counts what is held at present. What users may cause in a time is a rate, which is limited elsewhere: canceled calls in
// internal/h2proxy, messages in internal/untrusted, and audit entries in internal/daemon.
package quota

import (
	"maps"
	"sync"
)

// Limits are the most that users may hold.
type Limits struct {
	// User limits each user, and Total all users together.
	User, Total int
	// Reserve is the part of Total that is kept for privileged users, to whom the limits apply as well. Without a reserve, privileged users
	// are exempt: what they take is neither limited nor counted.
	Reserve int
}

// Reserved returns limits with as large a reserve as one user may hold, but at most half of the total.
func Reserved(user, total int) Limits { return Limits{user, total, min(user, total/2)} }

// Reason is the limit for which a [Pool] gave nothing.
type Reason string

// The reasons.
const (
	User  Reason = "user"
	Total Reason = "total"
)

// Refusal describes why a [Pool] gave nothing.
type Refusal struct {
	Reason Reason
	// First reports whether it is the first refusal of the user since the user, or all users together, held at most half of the limit.
	First bool
	// OfUser and OfAll are what the user and all users held.
	OfUser, OfAll int
}

// Pool counts what users hold. It is safe for concurrent use.
type Pool struct {
	limits     Limits
	privileged func(uid uint32) bool

	mu    sync.Mutex
	users map[uint32]*user
	sum   int // what all users hold
	own   int // what the privileged users hold
	idle  int // how many of users hold nothing
	// period numbers the times in which something was refused for the total, until all users held at most half.
	period int
	isFull bool // the period has begun
}

type user struct {
	held    int
	refused bool // for the user's limit, since the user held at most half
	period  int  // the last one in which the user was refused for the total
}

// New returns a pool. If privileged is nil, no user is.
func New(limits Limits, privileged func(uid uint32) bool) *Pool {
	if privileged == nil {
		privileged = func(uint32) bool { return false }
	}
	return &Pool{limits: limits, privileged: privileged, users: map[uint32]*user{}}
}

// Take gives a user n more, or returns why there is no room. There is always room for nothing.
func (p *Pool) Take(uid uint32, n int) *Refusal {
	privileged := p.privileged(uid)
	if n == 0 || p.isExempt(privileged) {
		return nil
	}
	most := p.limits.Total
	p.mu.Lock()
	defer p.mu.Unlock()
	if !privileged {
		most -= max(p.limits.Reserve-p.own, 0)
	}
	u := p.user(uid)
	switch {
	case u.held+n > p.limits.User:
		return p.refuse(u, User)
	case p.sum+n > most:
		return p.refuse(u, Total)
	}
	p.add(u, n, privileged)
	return nil
}

// refuse returns the refusal of a user. p.mu is held.
func (p *Pool) refuse(u *user, why Reason) *Refusal {
	first := !u.refused
	if why == Total {
		if !p.isFull {
			p.isFull = true
			p.period++
		}
		first = u.period != p.period
		u.period = p.period
	} else {
		u.refused = true
	}
	return &Refusal{Reason: why, First: first, OfUser: u.held, OfAll: p.sum}
}

// Add gives a user n more, whether there is room or not.
func (p *Pool) Add(uid uint32, n int) {
	privileged := p.privileged(uid)
	if n == 0 || p.isExempt(privileged) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(p.user(uid), n, privileged)
}

// Release takes back n of what a user holds.
func (p *Pool) Release(uid uint32, n int) {
	privileged := p.privileged(uid)
	if n == 0 || p.isExempt(privileged) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.users[uid]
	u.held -= n
	p.sum -= n
	if privileged {
		p.own -= n
	}
	if u.held <= p.limits.User/2 {
		u.refused = false
	}
	if p.sum <= p.limits.Total/2 {
		p.isFull = false
	}
	switch {
	case u.held > 0:
	case p.isFull && u.period == p.period:
		p.idle++ // kept, so that the next refusal is not the first
	default:
		delete(p.users, uid)
	}
	if p.idle > 0 && !p.isFull {
		maps.DeleteFunc(p.users, func(_ uint32, u *user) bool { return u.held == 0 })
		p.idle = 0
	}
}

// Usage returns what a user holds, and what all users hold.
func (p *Pool) Usage(uid uint32) (user, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u := p.users[uid]; u != nil {
		user = u.held
	}
	return user, p.sum
}

// Of returns what a user holds.
func (p *Pool) Of(uid uint32) int {
	n, _ := p.Usage(uid)
	return n
}

// Sum returns what all users hold.
func (p *Pool) Sum() int {
	_, n := p.Usage(0)
	return n
}

// Limits returns the limits.
func (p *Pool) Limits() Limits { return p.limits }

func (p *Pool) isExempt(privileged bool) bool { return privileged && p.limits.Reserve == 0 }

// user returns the entry of a user. p.mu is held.
func (p *Pool) user(uid uint32) *user {
	u := p.users[uid]
	if u == nil {
		u = &user{}
		p.users[uid] = u
		p.idle++
	}
	return u
}

// add counts n more. p.mu is held.
func (p *Pool) add(u *user, n int, privileged bool) {
	if u.held == 0 {
		p.idle--
	}
	u.held += n
	p.sum += n
	if privileged {
		p.own += n
	}
}

// Grant is what a [Pool] has given a user for one purpose. Its methods are safe for concurrent use; a nil Grant holds nothing.
type Grant struct {
	pool *Pool
	uid  uint32

	mu    sync.Mutex
	held  int
	ended bool
}

// Grant returns a grant of nothing yet.
func (p *Pool) Grant(uid uint32) *Grant { return &Grant{pool: p, uid: uid} }

// Take takes n more, or returns why there is no room.
func (g *Grant) Take(n int) *Refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil
	}
	refusal := g.pool.Take(g.uid, n)
	if refusal == nil {
		g.held += n
	}
	return refusal
}

// Add takes n more, whether there is room or not.
func (g *Grant) Add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		g.pool.Add(g.uid, n)
		g.held += n
	}
}

// Release gives all of it back.
func (g *Grant) Release() { g.release(false) }

// End gives all of it back. What is taken later is not counted.
func (g *Grant) End() { g.release(true) }

func (g *Grant) release(end bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pool.Release(g.uid, g.held)
	g.held = 0
	g.ended = g.ended || end
}
