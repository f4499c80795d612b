// Package quota limits how much of a resource, such as connections or bytes, each user and all users together hold at a time.
//
// Rates are limited elsewhere: canceled calls in internal/h2proxy, messages in internal/untrusted, and audit entries in internal/daemon.
package quota

import (
	"maps"
	"sync"
)

// Limits are the maximum amounts that users may hold.
type Limits struct {
	// User limits each user, and Total all users together.
	User, Total int
	// Reserve is the part of Total that only privileged users may use; User and Total apply to them too. If it is zero, privileged users are
	// neither limited nor counted.
	Reserve int
}

// Reserved returns limits with a reserve of the limit of one user, but at most half of the total.
func Reserved(user, total int) Limits { return Limits{user, total, min(user, total/2)} }

// Reason is the limit that a refused request would exceed.
type Reason string

// The reasons.
const (
	User  Reason = "user"
	Total Reason = "total"
)

// Refusal describes why a request was refused.
type Refusal struct {
	Reason Reason
	// First reports whether it is the user's first refusal for this reason since the user, or for Total all users, held at most half of the
	// limit.
	First bool
	// OfUser and OfAll are the amounts that the user and all users held.
	OfUser, OfAll int
}

// Pool counts the amounts that users hold. It is safe for concurrent use.
type Pool struct {
	limits     Limits
	privileged func(uid uint32) bool

	mu    sync.Mutex
	users map[uint32]*user
	sum   int // the amount of all users
	own   int // the amount of privileged users
	idle  int // the number of entries in users that hold nothing
	// period counts the periods from a refusal for Total until all users hold at most half of it.
	period int
	isFull bool // a period has begun and not ended
}

type user struct {
	held    int
	refused bool // for User, since the user held at most half of it
	period  int  // the last period in which the user was refused
}

// New returns a Pool. If privileged is nil, no user is privileged.
func New(limits Limits, privileged func(uid uint32) bool) *Pool {
	if privileged == nil {
		privileged = func(uint32) bool { return false }
	}
	return &Pool{limits: limits, privileged: privileged, users: map[uint32]*user{}}
}

// Take adds n to the amount of a user, or returns a Refusal if that would exceed a limit. It never refuses zero.
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

// Add adds n to the amount of a user, regardless of the limits.
func (p *Pool) Add(uid uint32, n int) {
	privileged := p.privileged(uid)
	if n == 0 || p.isExempt(privileged) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(p.user(uid), n, privileged)
}

// Release subtracts n from the amount of a user.
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
		p.idle++ // the entry stays, so that the next refusal is not the first
	default:
		delete(p.users, uid)
	}
	if p.idle > 0 && !p.isFull {
		maps.DeleteFunc(p.users, func(_ uint32, u *user) bool { return u.held == 0 })
		p.idle = 0
	}
}

// Usage returns the amounts that a user and all users hold.
func (p *Pool) Usage(uid uint32) (user, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u := p.users[uid]; u != nil {
		user = u.held
	}
	return user, p.sum
}

// Held returns the amount that a user holds.
func (p *Pool) Held(uid uint32) int {
	n, _ := p.Usage(uid)
	return n
}

// Sum returns the amount that all users hold.
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

// add adds n to the amount of a user. p.mu is held.
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

// Grant is the amount that one connection, call or other owner has taken from a [Pool]. Its methods are safe for concurrent use. Release
// and End of a nil Grant have no effect.
type Grant struct {
	pool *Pool
	uid  uint32

	mu    sync.Mutex
	held  int
	ended bool
}

// Grant returns a Grant that holds nothing.
func (p *Pool) Grant(uid uint32) *Grant { return &Grant{pool: p, uid: uid} }

// Take takes n, or returns a Refusal if that would exceed a limit.
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

// Add takes n, regardless of the limits.
func (g *Grant) Add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		g.pool.Add(g.uid, n)
		g.held += n
	}
}

// Release returns everything to the Pool.
func (g *Grant) Release() { g.release(false) }

// End returns everything to the Pool. Later calls of Take and Add have no effect.
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
