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

	"github.com/patchbay-dev/patchbay/internal/quota"
)

// asking bounds how many plugins are asked at the same time what they are, of each user and of all except root and the host's user: each
// takes a descriptor until it is registered, and then counts as a plugin, or until it has been refused. If there is no room, a plugin that
// has just appeared takes the place of the one that has not answered for the longest time, as soon as that one is overdue, and one that is
// asked again waits. A crowd of plugins that do not answer therefore delays only itself.
type asking struct {
	mu     sync.Mutex
	places *quota.Pool // nil for any number
	users  map[uint32]*askedUser
	// quick is about how long plugins take that answer quickly; zero if none has answered. A few slow ones raise it little.
	quick time.Duration
	timer *time.Timer // calls press; nil until it is needed
}

// A plugin is overdue when it has not answered for overdueTimes as long as quick ones take, on this machine as busy as it is, but at most
// for overdueMost: a user's plugins may all be slow on purpose.
const (
	overdueTimes = 32
	overdueMost  = 500 * time.Millisecond
)

// askedUser is what a user has of an asking.
type askedUser struct {
	uid uint32
	// first and again are the plugins that wait for a place, and asked are those that have one and have not answered, the oldest first.
	first, again, asked list.List // of *place
}

// place is the place of one plugin among those that are asked. Methods of nil do nothing: it is that of a plugin that is not counted.
type place struct {
	asking *asking
	user   *askedUser
	given  chan struct{} // closed when the plugin may be asked

	// Guarded by asking.mu.
	since  time.Time  // when it was given
	queue  *list.List // of user, in which at is; nil if it is in none
	at     *list.Element
	heir   *place                  // gets the place when it is left
	ended  bool                    // the plugin does not need it any more
	putOff context.CancelCauseFunc // ends the call that asks the plugin, if there is one
}

// newAsking takes the bounds of how many plugins there may be: as many may be asked.
func newAsking(perUser, total int) *asking {
	if total <= 0 || total == math.MaxInt {
		return &asking{}
	}
	if perUser <= 0 || perUser > total {
		perUser = total
	}
	return &asking{places: quota.New(quota.Limits{User: perUser, Total: total}, nil), users: map[uint32]*askedUser{}}
}

// begin returns a place for a plugin of a user as soon as there is one, or an error when ctx ends. first reports whether the plugin has not
// been asked since it appeared. The caller ends the place when the plugin is registered or refused.
func (a *asking) begin(ctx context.Context, uid uint32, first bool) (*place, error) {
	if a.places == nil {
		return nil, nil
	}
	p := a.enter(uid, first)
	select {
	case <-p.given:
		return p, nil
	default:
	}
	select {
	case <-p.given:
		return p, nil
	case <-ctx.Done():
		p.end()
		return nil, a.unasked(uid, ctx.Err())
	}
}

// enter returns a place that is given, or that waits to be.
func (a *asking) enter(uid uint32, first bool) *place {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.users[uid]
	if u == nil { // there are as many as are trusted
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

// press lets plugins that have just appeared take the places of those that are overdue, now and when others become so: first those of the
// user who has the fewest places. a.mu is held.
func (a *asking) press() {
	var waiting []*askedUser
	for _, u := range a.users {
		if u.first.Len() > 0 {
			waiting = append(waiting, u)
		}
	}
	slices.SortFunc(waiting, func(x, y *askedUser) int { return cmp.Compare(a.places.Of(x.uid), a.places.Of(y.uid)) })
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

// yield makes a place that of another plugin as soon as its own has closed its connection. a.mu is held.
func (p *place) yield(heir *place) {
	p.leave()
	p.asking.places.Release(p.user.uid, 1)
	p.asking.places.Add(heir.user.uid, 1)
	p.heir = heir
	if p.putOff != nil {
		p.putOff(errPutOff)
	}
}

// overdueIn returns how long it takes until a plugin that does not answer is overdue. a.mu is held.
func (a *asking) overdueIn(p *place) time.Duration {
	patience := overdueMost
	if a.quick > 0 {
		patience = min(patience, overdueTimes*a.quick)
	}
	return time.Until(p.since.Add(patience))
}

// took takes over how long a plugin took to answer. a.mu is held.
func (a *asking) took(d time.Duration) {
	if a.quick == 0 || d < a.quick {
		a.quick = max(d, 1)
	} else {
		a.quick += (d - a.quick) / 64
	}
}

// yields returns the place that goes to a plugin of a user that has just appeared when there is no room: a place of that user, unless only
// the total is reached and another user has more, and then a place of the one who has most. Nil if all those plugins have answered. a.mu is
// held.
func (a *asking) yields(u *askedUser) *place {
	most := u
	if a.places.Of(u.uid) < a.places.Limits().User {
		for uid, other := range a.users {
			if n := a.places.Of(uid); other.asked.Len() > 0 && n > a.places.Of(most.uid) {
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

// serve gives the free places to the plugins that wait: first to those that have just appeared, and among these to those of the user who
// has the fewest places. a.mu is held.
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

// fewest returns the user with the fewest places among those whose plugins wait and who may have one more; nil if there is none. a.mu is
// held.
func (a *asking) fewest(waiting func(*askedUser) *list.List) (next *askedUser) {
	for uid, u := range a.users {
		n := a.places.Of(uid)
		if waiting(u).Len() > 0 && n < a.places.Limits().User && (next == nil || n < a.places.Of(next.uid)) {
			next = u
		}
	}
	return next
}

// join puts a place at the end of a queue of its user, and leave takes it out. a.mu is held.
func (p *place) join(queue *list.List) { p.queue, p.at = queue, queue.PushBack(p) }

func (p *place) leave() {
	if p.queue != nil {
		p.queue.Remove(p.at)
		p.queue, p.at = nil, nil
	}
}

// give lets the plugin be asked. a.mu is held.
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

// ask returns the context of the call that asks the plugin. It ends, with the cause errPutOff, if another one gets the place. The caller
// calls answered when the call has returned, with its error.
func (p *place) ask(ctx context.Context) (_ context.Context, answered func(error)) {
	if p == nil {
		return ctx, func(error) {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p.asking.mu.Lock()
	defer p.asking.mu.Unlock()
	p.putOff = cancel
	if p.heir != nil {
		cancel(errPutOff)
	}
	began := time.Now()
	return ctx, func(err error) {
		p.asking.mu.Lock()
		defer p.asking.mu.Unlock()
		if err == nil {
			p.asking.took(time.Since(began))
		}
		p.putOff = nil
		p.leave()
		cancel(nil)
	}
}

// answers states that the plugin has said what it is without being asked.
func (p *place) answers() {
	if p != nil {
		p.asking.mu.Lock()
		defer p.asking.mu.Unlock()
		p.leave()
	}
}

// end gives the place to another plugin. It may be called again.
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

// pass gives the place, which nobody uses any more, to its heir, or to a plugin that waits. a.mu is held.
func (p *place) pass() {
	last := p
	if p.heir != nil {
		last = p.heir
	}
	if !last.ended {
		last.give()
		p.asking.press() // now this is one that can be overdue
		return
	}
	p.asking.places.Release(last.user.uid, 1)
	p.asking.serve()
	p.asking.press()
}

// errPutOff is why a plugin is asked no longer.
var errPutOff = errors.New("another plugin that has just appeared is asked instead")

func (a *asking) unasked(uid uint32, err error) error {
	limits := a.places.Limits()
	return fmt.Errorf("it was not asked who it is, or not for long enough to answer, because %d plugins of user %d, or %d in total, "+
		"are neither registered nor refused yet: %w", limits.User, uid, limits.Total, err)
}
