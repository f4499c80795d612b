package locks

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

var errTermOver = errors.New("the lease of its locks could not be renewed in time")

// term is the lifetime of one lease, over one or more connections.
type term struct {
	lease clientv3.LeaseID
	// candidacies belong to the goroutine of Run.
	candidacies map[plugin.Name]*candidacy
	// living ends with the term, at the latest at until.
	living context.Context //nolint:containedctx // It is the lifetime of the term.
	end    context.CancelCauseFunc
	timer  *time.Timer

	mu    sync.Mutex
	until time.Time // by both clocks of this machine
}

func newTerm(lease clientv3.LeaseID, sent time.Time, ttl time.Duration) *term {
	t := &term{lease: lease, candidacies: map[plugin.Name]*candidacy{}}
	t.living, t.end = context.WithCancelCause(context.Background())
	t.timer = time.AfterFunc(ttl, func() { t.end(errTermOver) })
	t.extend(sent, ttl)
	return t
}

// isValid reports whether the lease cannot have expired, by both clocks: the monotonic one stops while the machine sleeps.
func (t *term) isValid(now time.Time) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isBefore(now) && t.living.Err() == nil
}

// isBefore reports whether a time is before the end. The caller holds mu.
func (t *term) isBefore(now time.Time) bool {
	return now.Before(t.until) && now.Round(0).Before(t.until.Round(0))
}

// extend is called after a renewal that was sent at a time. After the end, it ends the term, because another node may hold the locks.
func (t *term) extend(sent time.Time, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.until.IsZero() && !t.isBefore(time.Now()) {
		t.end(errTermOver)
		return
	}
	t.until = sent.Add(ttl - ttl/10)
	t.timer.Reset(time.Until(t.until))
}

// Run competes until ctx ends, and then gives up all locks, which takes at most a few seconds. It may be called once.
func (e *Elector) Run(ctx context.Context) {
	failures := 0
	for delay := time.Duration(0); backoff.Pause(ctx, delay); {
		for e.term == nil && len(e.wants()) == 0 {
			select {
			case <-e.changed:
			case <-ctx.Done():
				return
			}
		}
		err := e.connect(ctx)
		switch {
		case ctx.Err() != nil:
		case e.term != nil: // the term continues over another connection
			e.Logger.Debug("fleet: the node connects to etcd again for its locks", "error", fleet.Explain(err))
			failures, delay = 0, e.TTL/50
		default:
			if failures++; failures == 1 {
				e.Logger.Warn("fleet: the node holds no locks", "error", fleet.Explain(err))
			}
			delay = min(fleet.Retry.After(failures), e.TTL)
		}
	}
	if e.term != nil {
		_ = e.connect(ctx) // to leave
	}
}

// connect competes until the connection to etcd or the term ends. The term may continue over the next connection.
func (e *Elector) connect(ctx context.Context) error {
	e.member++
	client, err := e.Cluster.Client(e.member)
	s := &session{Elector: e, client: client}
	if err == nil {
		defer func() { _ = client.Close() }()
		if ctx.Err() == nil {
			err = s.open()
		}
		if ctx.Err() == nil && err == nil {
			err = s.run(ctx)
		}
		if s.roster != nil {
			e.longest = max(e.longest, s.roster.longest)
		}
		if lost := context.Cause(client.Ctx()); lost != nil {
			err = lost
		}
	}
	if e.term == nil {
		return err
	}
	if fleet.IsLeaseUnknown(err) || errors.Is(err, errWentBack) {
		e.term.end(err)
	}
	over := context.Cause(e.term.living)
	if over != nil || ctx.Err() != nil {
		s.leave()
	}
	return cmp.Or(over, err)
}

const leavePatience = 2 * time.Second // for etcd at the end of a term

// leave ends the term. If etcd can be reached, other nodes need not wait for the end of the lease.
func (s *session) leave() {
	t, now := s.term, time.Now()
	t.end(context.Canceled)
	t.timer.Stop()
	var held []*candidacy
	var drained time.Time
	for _, c := range t.candidacies {
		if c.hold != nil {
			s.drop(c, now)
		} else if c.phase == waiting {
			c.phase = leaving
		}
		if c.phase == leaving {
			held = append(held, c)
			drained = slices.MaxFunc([]time.Time{drained, c.next}, time.Time.Compare)
		}
	}
	s.mu.Lock()
	s.term = nil
	s.mu.Unlock()
	if s.client == nil || s.client.Ctx().Err() != nil {
		return
	}
	backoff.Pause(s.client.Ctx(), time.Until(drained))
	defer time.AfterFunc(leavePatience, func() { _ = s.client.Close() }).Stop()
	for some := range slices.Chunk(held, maxOps) {
		if err := s.change(some); err != nil {
			break
		}
	}
	ctx, cancel := s.request()
	defer cancel()
	_, _ = s.client.Revoke(ctx, t.lease)
}

type phase int

const (
	absent    phase = iota // there is no key
	waiting                // the key exists, and the node waits
	holding                // the node holds the lock, and the key does not have the token yet
	announced              // the node holds the lock, and the key has the token
	leaving                // the node has given up the lock, and the key does not have the value left yet
	left                   // the key has to be removed: it has the value left, or another node created it
	phases
)

// writes are the phases in which the key is written. The next phase is the first one if the key was as the node knows it, and otherwise the
// second one. Each write is repeated until etcd has answered.
var writes = [phases]struct{ next, conflict phase }{
	absent:  {waiting, left},
	holding: {announced, holding},
	leaving: {left, left},
	left:    {absent, left},
}

// candidacy is the state of one lock in a term.
type candidacy struct {
	keys.Contender // Created is zero in the phase absent

	key   string
	phase phase
	hold  *Hold     // in the phases holding and announced
	next  time.Time // the earliest time of the next write of the key
}

func (e *Elector) newCandidacy(l plugin.Name) *candidacy {
	c := &candidacy{Contender: keys.Contender{Lock: l, Node: e.Node, TTL: e.TTL, Lease: e.term.lease}}
	c.key = c.Key(e.space)
	return c
}

// write returns the request that writes the key, and the condition for it.
func (c *candidacy) write() (clientv3.Op, clientv3.Cmp) {
	value, created := c.Value(), clientv3.CreateRevision(c.key)
	if c.phase == left { // the condition always holds: the key is removed even if another node created it
		return clientv3.OpDelete(c.key), clientv3.Compare(created, ">", -1)
	}
	if c.phase == leaving {
		value = keys.ContenderLeft
	}
	return clientv3.OpPut(c.key, value, clientv3.WithLease(c.Lease)), clientv3.Compare(created, "=", c.Created)
}

// wrote is called after the key was written, or the condition has failed.
func (c *candidacy) wrote(succeeded bool, revision int64) {
	switch step := writes[c.phase]; {
	case !succeeded:
		c.phase = step.conflict
	case c.phase == absent:
		c.phase, c.Created = step.next, revision
	case c.phase == left:
		c.phase, c.Created, c.Token = step.next, 0, 0
	default:
		c.phase = step.next
	}
}
