// Package quota bounds what the users of a machine may have of something, each and all together, and leaves room for the host's own. It
// knows nothing of what is counted.
package quota

// Pool counts what users have. It is not safe for concurrent use.
type Pool struct {
	perUser, total int
	privileged     func(uid uint32) bool

	byUser map[uint32]int
	// sum is what all have, own what the privileged have.
	sum, own int
	// told are the users who were refused since they had half of what one may have.
	told map[uint32]bool
}

// New returns a Pool of total, of which one user may have perUser. As much of the total, but at most half, is kept for the privileged; with
// nil nothing is, which is for what the privileged have without bound and do not take here.
func New(perUser, total int, privileged func(uid uint32) bool) *Pool {
	if privileged == nil {
		privileged = func(uint32) bool { return true }
	}
	return &Pool{perUser: perUser, total: total, privileged: privileged, byUser: map[uint32]int{}, told: map[uint32]bool{}}
}

// Take gives a user n more, if there is room. If there is not, first says whether that is news.
func (p *Pool) Take(uid uint32, n int) (ok, first bool) {
	most := p.total
	if !p.privileged(uid) {
		reserve := min(p.perUser, p.total/2)
		most -= max(reserve-p.own, 0)
	}
	if p.byUser[uid]+n > p.perUser || p.sum+n > most {
		first = !p.told[uid]
		p.told[uid] = true
		return false, first
	}
	p.Add(uid, n)
	return true, false
}

// Add gives a user n more, whether there is room or not.
func (p *Pool) Add(uid uint32, n int) {
	if n == 0 {
		return
	}
	p.byUser[uid] += n
	p.sum += n
	if p.privileged(uid) {
		p.own += n
	}
}

// Give takes n back.
func (p *Pool) Give(uid uint32, n int) {
	p.sum -= n
	if p.privileged(uid) {
		p.own -= n
	}
	if p.byUser[uid] -= n; p.byUser[uid] == 0 {
		delete(p.byUser, uid)
	}
	if p.byUser[uid] <= p.perUser/2 {
		delete(p.told, uid)
	}
}

// Of returns what a user has.
func (p *Pool) Of(uid uint32) int { return p.byUser[uid] }

// Limits returns what a user and all may have.
func (p *Pool) Limits() (perUser, total int) { return p.perUser, p.total }

// Sum returns what all have.
func (p *Pool) Sum() int { return p.sum }
