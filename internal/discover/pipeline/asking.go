package pipeline

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/discover/clock"
	"github.com/patchbay-dev/patchbay/internal/quota"
)

// asking limits how many plugins are asked for their type and name at the same time, for each user and in total. Root and the host's user
// are exempt. Each such plugin needs a descriptor until it is registered or refused. At the limit, a plugin that has just appeared takes
// the place of the plugin that has not answered for the longest time, as soon as that one is overdue; a plugin that is retried waits. So
// plugins that do not answer only delay each other.
type asking struct {
	mu     sync.Mutex
	places *quota.Pool // nil for no limit
	users  map[uint32]*askedUser
	// connects and answers estimate how long it takes to connect to a socket, and how long a plugin takes to answer.
	connects, answers clock.Latency
	timer             *time.Timer // calls press; nil until it is needed
}

// A plugin is overdue when it has not answered for overdueTimes the time of fast plugins, which includes the load of this machine. A user's
// plugins may be slow on purpose, so that time is at most overdueMost or, on a slow machine, overdueConnects times that of connecting.
const (
	overdueTimes    = 32
	overdueMost     = 500 * time.Millisecond
	overdueConnects = 20_000
)

// askedUser are the plugins of one user.
type askedUser struct {
	uid uint32
	// first and again are the plugins that wait for a place: new ones, and retried ones. asked are the plugins that have a place and have
	// not answered. The oldest are first.
	first, again, asked list.List // of *place
}

// place is a slot for asking one plugin. A nil place belongs to a plugin that is not limited; its methods do nothing.
type place struct {
	asking *asking
	user   *askedUser
	given  chan struct{} // closed when the plugin may be asked

	// Guarded by asking.mu.
	since  time.Time  // when it was given
	queue  *list.List // the list of user that has the element at; nil if none has
	at     *list.Element
	heir   *place                  // gets the slot next
	ended  bool                    // the plugin does not need it any more
	putOff context.CancelCauseFunc // cancels the call of GetInfo, if there is one
}

// newAsking returns an asking with the limits for the number of plugins.
func newAsking(perUser, total int) *asking {
	if total <= 0 || total == math.MaxInt {
		return &asking{}
	}
	if perUser <= 0 || perUser > total {
		perUser = total
	}
	return &asking{places: quota.New(quota.Limits{User: perUser, Total: total}, nil), users: map[uint32]*askedUser{}}
}

// begin blocks until there is a place for a plugin of a user, or ctx ends. first reports whether the plugin has not been asked since it
// appeared. The caller must end the place when the plugin is registered or refused.
func (a *asking) begin(ctx context.Context, uid uint32, first bool) (*place, error) {
	if a.places == nil {
		return nil, nil
	}
	p := a.enter(uid, first)
	if p.isGiven() {
		return p, nil
	}
	select {
	case <-p.given:
		return p, nil
	case <-ctx.Done():
		p.end()
		return nil, a.unasked(uid, ctx.Err())
	}
}

// enter returns a place that is given, or is in a queue.
func (a *asking) enter(uid uint32, first bool) *place {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.users[uid]
	if u == nil { // never deleted: only trusted users get here
		u = &askedUser{uid: uid}
		a.users[uid] = u
	}
	p := &place{asking: a, user: u, given: make(chan struct{})}
	if a.places.Take(uid, 1) == nil {
		p.give()
		return p
	}
	if !first {
		p.join(&u.again)
		return p
	}
	p.join(&u.first)
	a.press()
	return p
}

// press gives the places of overdue plugins to plugins that have just appeared, first to those of the user with the fewest places, and sets
// the timer for the next plugin that becomes overdue. a.mu is held.
func (a *asking) press() {
	var waiting []*askedUser
	for _, u := range a.users {
		if u.first.Len() > 0 {
			waiting = append(waiting, u)
		}
	}
	slices.SortFunc(waiting, func(x, y *askedUser) int { return cmp.Compare(a.places.Held(x.uid), a.places.Held(y.uid)) })
	next := time.Duration(math.MaxInt64)
	for _, u := range waiting {
		for u.first.Len() > 0 {
			yields := a.yields(u)
			if yields == nil {
				break
			}
			if wait := a.overdueIn(yields); wait > 0 {
				next = min(next, wait)
				break
			}
			p, _ := u.first.Front().Value.(*place)
			p.leave()
			yields.yield(p)
		}
	}
	switch {
	case next == math.MaxInt64:
	case a.timer != nil:
		a.timer.Reset(next)
	default:
		a.timer = time.AfterFunc(next, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.press()
		})
	}
}

// yield passes a place to heir, as soon as its plugin's connection is closed. a.mu is held.
func (p *place) yield(heir *place) {
	p.leave()
	p.asking.places.Release(p.user.uid, 1)
	p.asking.places.Add(heir.user.uid, 1)
	p.heir = heir
	if p.putOff != nil {
		p.putOff(errPutOff)
	}
}

// overdueIn returns the time until a plugin is overdue. a.mu is held.
func (a *asking) overdueIn(p *place) time.Duration {
	patience := max(overdueMost, overdueConnects*time.Duration(a.connects))
	if a.answers > 0 {
		patience = min(patience, overdueTimes*time.Duration(a.answers))
	}
	return time.Until(p.since.Add(patience))
}

// measured adds the time since began to connects or answers.
func (a *asking) measured(of *clock.Latency, began time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of.Add(time.Since(began))
}

func (a *asking) latencies() (connecting, answering time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Duration(a.connects), time.Duration(a.answers)
}

// yields returns the place to pass to a new plugin of a user when a limit is reached: one of the same user or, if only the total limit is
// reached, of the user with the most places. It returns nil if all plugins of that user have answered. a.mu is held.
func (a *asking) yields(u *askedUser) *place {
	most := u
	if a.places.Held(u.uid) < a.places.Limits().User {
		for uid, other := range a.users {
			if n := a.places.Held(uid); other.asked.Len() > 0 && n > a.places.Held(most.uid) {
				most = other
			}
		}
	}
	if most.asked.Len() == 0 {
		return nil
	}
	p, _ := most.asked.Front().Value.(*place)
	return p
}

// serve gives the free places to waiting plugins: first to new plugins, and among these first to those of the user with the fewest places.
// a.mu is held.
func (a *asking) serve() {
	for _, waiting := range []func(*askedUser) *list.List{
		func(u *askedUser) *list.List { return &u.first }, func(u *askedUser) *list.List { return &u.again },
	} {
		for {
			next := a.fewest(waiting)
			if next == nil {
				break
			}
			if a.places.Take(next.uid, 1) != nil {
				break
			}
			p, _ := waiting(next).Front().Value.(*place)
			p.leave()
			p.give()
		}
	}
}

// fewest returns the user with the fewest places among those who are below their limit and have waiting plugins, or nil. a.mu is held.
func (a *asking) fewest(waiting func(*askedUser) *list.List) (next *askedUser) {
	for uid, u := range a.users {
		n := a.places.Held(uid)
		if waiting(u).Len() > 0 && n < a.places.Limits().User && (next == nil || n < a.places.Held(next.uid)) {
			next = u
		}
	}
	return next
}

// join adds a place to the end of a queue of its user, and leave removes it. a.mu is held.
func (p *place) join(queue *list.List) { p.queue, p.at = queue, queue.PushBack(p) }

func (p *place) leave() {
	if p.queue != nil {
		p.queue.Remove(p.at)
		p.queue, p.at = nil, nil
	}
}

// give allows the plugin to be asked. a.mu is held.
func (p *place) give() {
	p.since = time.Now()
	p.join(&p.user.asked)
	close(p.given)
}

// isGiven reports whether the plugin may be asked, or has been.
func (p *place) isGiven() bool {
	select {
	case <-p.given:
		return true
	default:
		return false
	}
}

// ask returns the context for the call of GetInfo. It is cancelled, with the cause errPutOff, if another plugin gets the place. The caller
// must call returned when the call has returned.
func (p *place) ask(ctx context.Context) (_ context.Context, returned func()) {
	if p == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p.asking.mu.Lock()
	defer p.asking.mu.Unlock()
	p.putOff = cancel
	if p.heir != nil {
		cancel(errPutOff)
	}
	return ctx, func() {
		p.asking.mu.Lock()
		defer p.asking.mu.Unlock()
		p.putOff = nil
		p.leave()
		cancel(nil)
	}
}

// answers records that the plugin has identified itself without a call.
func (p *place) answers() {
	if p != nil {
		p.asking.mu.Lock()
		defer p.asking.mu.Unlock()
		p.leave()
	}
}

// end gives the place back. It may be called more than once.
func (p *place) end() {
	if p == nil {
		return
	}
	a := p.asking
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	p.leave()
	if p.isGiven() {
		p.pass()
	}
}

// pass gives an unused place to its heir or to a waiting plugin. a.mu is held.
func (p *place) pass() {
	last := p
	if p.heir != nil {
		last = p.heir
	}
	if !last.ended {
		last.give()
		p.asking.press() // the heir may become overdue
		return
	}
	p.asking.places.Release(last.user.uid, 1)
	p.asking.serve()
	p.asking.press()
}

// errPutOff is the reason why a call of GetInfo was cancelled.
var errPutOff = errors.New("another plugin that has just appeared is asked instead")

func (a *asking) unasked(uid uint32, err error) error {
	limits := a.places.Limits()
	return fmt.Errorf("it was not asked for its type and name, or had too little time to answer, because %d plugins of user %d, "+
		"or %d in total, are neither registered nor refused yet: %w", limits.User, uid, limits.Total, err)
}
