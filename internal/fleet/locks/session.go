package locks

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

const (
	maxOps  = 100               // the maximum number of keys in one request; etcd accepts 128 operations
	maxBase = math.MaxInt64 / 2 // the greatest base of tokens that is accepted from another node, so that tokens can grow
)

// session competes over one connection to etcd. All that it knows is from one history of etcd.
type session struct {
	*Elector
	client  *clientv3.Client
	roster  *roster
	changes clientv3.WatchChan // of the contenders
	settled bool               // the node's own key has the base of tokens, in case the key of another node with the base is removed
	failed  bool               // the last request failed
	renewal time.Time
}

func (s *session) request() (context.Context, context.CancelFunc) {
	return context.WithTimeout(clientv3.WithRequireLeader(s.client.Ctx()), s.timeout)
}

// open begins a term if there is none, and reads the contenders and watches them.
func (s *session) open() error {
	if _, err := s.inspect(); err != nil {
		return err
	}
	s.renewal = time.Now()
	if s.term == nil {
		ctx, cancel := s.request()
		granted, err := s.client.Grant(ctx, int64(s.TTL/time.Second))
		if cancel(); err != nil {
			return err
		}
		t := newTerm(granted.ID, s.renewal, s.TTL)
		s.mu.Lock()
		s.term = t
		s.mu.Unlock()
		s.renewal = s.renewal.Add(s.TTL / 3)
	}
	listed, prefix := time.Now(), s.space.LockSpace()
	ctx, cancel := s.request()
	defer cancel()
	found, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	s.roster = newRoster(s.space, s.longest, listed, found.Header.GetRevision(), found.Kvs)
	watching := clientv3.WithRequireLeader(s.client.Ctx())
	s.changes = s.client.Watch(watching, prefix, clientv3.WithPrefix(), clientv3.WithRev(found.Header.GetRevision()+1))
	return nil
}

// run competes until ctx, the term or the connection ends.
func (s *session) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, err := s.act(time.Now())
		switch {
		case fleet.IsLeaseUnknown(err), errors.Is(err, errWentBack), err != nil && s.failed:
			return err
		case err != nil:
			next = time.Now().Add(s.TTL / 50)
		}
		s.failed = err != nil
		timer.Reset(time.Until(next))
		select {
		case response, open := <-s.changes:
			if err := response.Err(); err != nil || !open {
				return err
			}
			s.roster.apply(response.Events, time.Now())
		case <-s.changed:
		case <-timer.C:
		case <-s.client.Ctx().Done():
			return nil
		case <-s.term.living.Done():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// act renews the lease if that is due, and makes one of the requests that the candidacies need. It returns when to call it again.
func (s *session) act(now time.Time) (next time.Time, err error) {
	if !now.Before(s.renewal) {
		if err := s.renew(now); err != nil {
			return next, err
		}
	}
	wanted := s.wants()
	for l := range wanted {
		if s.term.candidacies[l] == nil {
			s.term.candidacies[l] = s.newCandidacy(l)
		}
	}
	next = s.renewal
	var due [phases][]*candidacy
	for l, c := range s.term.candidacies {
		if s.check(c, wanted[l], now); c.phase == absent && !wanted[l] {
			delete(s.term.candidacies, l)
			continue
		}
		at, needed := c.next, c.phase != announced
		if c.phase == waiting {
			var free time.Time
			needed, free = s.roster.isFirst(c.Contender)
			at = slices.MaxFunc([]time.Time{at, free}, time.Time.Compare)
		}
		switch {
		case needed && at.After(now):
			next = now.Add(min(next.Sub(now), at.Sub(now)))
		case needed:
			due[c.phase] = append(due[c.phase], c)
		}
	}
	for _, p := range [...]phase{leaving, left, holding, waiting, absent} {
		switch some := due[p]; {
		case len(some) == 0:
		case p == waiting:
			return now, s.take(some, now)
		default:
			return now, s.change(some[:min(len(some), maxOps)])
		}
	}
	return next, nil
}

// check ends a candidacy whose key is gone or whose lock is not wanted, and a hold that has ended.
func (s *session) check(c *candidacy, wanted bool, now time.Time) {
	first, _ := s.roster.isFirst(c.Contender)
	switch {
	case c.hold == nil && c.phase != waiting:
	case !s.roster.has(c.Contender) || c.hold != nil && !first:
		s.keyLost(c, now)
	case c.hold != nil && (!wanted || c.hold.ended.Err() != nil):
		s.drop(c, now)
	case !wanted:
		c.phase = leaving
	}
}

func (s *session) keyLost(c *candidacy, now time.Time) {
	if c.hold != nil {
		s.Logger.Warn("fleet: the key of a lock was removed or replaced by somebody else, and the node gives the lock up",
			"lock", c.Lock.String(), "token", c.Token, "key", c.key)
		s.drop(c, now)
	}
	c.phase = left
}

func (s *session) drop(c *candidacy, now time.Time) {
	c.hold.lose()
	if c.hold.calls.Load() > 0 {
		// No other node takes the lock until the plugin has had the time to notice that its calls have ended.
		c.next = now.Add(min(s.TTL/10, time.Second))
	}
	s.mu.Lock()
	delete(s.held, c.Lock)
	s.mu.Unlock()
	s.Logger.Info("fleet: the node does not hold a lock any more", "lock", c.Lock.String(), "token", c.Token)
	c.hold, c.phase = nil, leaving
}

// renew renews the lease. It fails if the locks may be another node's.
func (s *session) renew(now time.Time) error {
	ctx, cancel := s.request()
	defer cancel()
	if _, err := s.client.KeepAliveOnce(ctx, s.term.lease); err != nil {
		return err
	}
	if _, err := s.inspect(); err != nil {
		return err
	}
	s.term.extend(now, s.TTL)
	s.renewal = now.Add(s.TTL / 3)
	s.roster.forget(now)
	return nil
}

// inspect reads the bases of tokens and the node's own keys. It ends the candidacies whose keys are not those that this node created, so
// that another node may hold the lock soon. It returns the token for a lock that is taken now.
func (s *session) inspect() (token int64, err error) {
	ctx, cancel := s.request()
	defer cancel()
	bases, own := s.space.TokenBaseKey(""), s.space.TokenBaseKey(s.Node)
	found, err := s.client.Txn(ctx).Then(clientv3.OpGet(bases, clientv3.WithPrefix()),
		clientv3.OpGet(s.space.LockRange(s.Node), clientv3.WithPrefix())).Commit()
	if err != nil {
		return 0, err
	}
	base, kept := int64(0), int64(0)
	for _, kv := range found.Responses[0].GetResponseRange().GetKvs() {
		n, err := strconv.ParseInt(string(kv.Value), 10, 64)
		if string(kv.Key) == own {
			kept = n
		}
		if err == nil && n <= maxBase {
			base = max(base, n)
		}
	}
	base, back := s.ledger.see(found.Header.GetRevision(), base)
	if back { // only the first answer is back
		s.Logger.Warn("fleet: etcd was restored or replaced, and fencing tokens grow from here on", "base", base)
	}
	if s.term != nil {
		if back {
			return 0, errWentBack
		}
		s.compareOwn(found.Responses[1].GetResponseRange().GetKvs())
	}
	if s.settled = base == kept; !s.settled {
		if !back { // the base was raised by another node
			s.Logger.Info("fleet: fencing tokens grow from the base that a node has raised", "base", base)
		}
		_, err = s.client.Put(ctx, own, strconv.FormatInt(base, 10))
	}
	return base + found.Header.GetRevision(), err
}

// compareOwn compares the node's own keys with its candidacies. There may be other keys: etcd was restored and has a key again that the
// node had removed, or a request arrived late.
func (s *session) compareOwn(kvs []*mvccpb.KeyValue) {
	now, found := time.Now(), map[string]keys.Contender{}
	for _, kv := range kvs {
		if c, ok := keys.ParseContender(s.space, kv); ok && c.Lease == s.term.lease {
			found[string(kv.Key)] = c
		}
	}
	for _, c := range s.term.candidacies {
		if c.phase != absent && c.phase < leaving && found[c.key].Created != c.Created {
			s.keyLost(c, now)
		}
		delete(found, c.key)
	}
	for _, stray := range found {
		c := s.newCandidacy(stray.Lock)
		c.phase, c.Created = leaving, stray.Created
		s.term.candidacies[c.Lock] = c
	}
}

// take makes the node the holder of free locks.
func (s *session) take(some []*candidacy, now time.Time) error {
	token, err := s.inspect()
	if err != nil || !s.settled {
		return err
	}
	if err := s.ledger.keep(); err != nil {
		s.postpone(some, now, err)
		return nil
	}
	for _, c := range some {
		if c.phase != waiting {
			continue
		}
		h := &Hold{Token: token, lock: c.Lock}
		h.ended, h.lose = context.WithCancel(s.term.living)
		s.mu.Lock()
		wanted := s.wanted[c.Lock]
		if wanted {
			s.held[c.Lock] = h
		}
		s.mu.Unlock()
		if !wanted {
			h.lose()
			continue
		}
		// The key is written after this, because other nodes forward calls to the holder in the key.
		c.Token, c.hold, c.phase = token, h, holding
		s.Logger.Info("fleet: the node holds a lock", "lock", c.Lock.String(), "token", token)
	}
	return nil
}

// change writes the keys of candidacies in the same phase.
func (s *session) change(some []*candidacy) error {
	var ops []clientv3.Op
	var conditions []clientv3.Cmp
	for _, c := range some {
		op, condition := c.write()
		ops, conditions = append(ops, op), append(conditions, condition)
	}
	ctx, cancel := s.request()
	defer cancel()
	answer, err := s.client.Txn(ctx).If(conditions...).Then(ops...).Commit()
	refusal, ok := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err))
	if ok && refusal.Code() != codes.Unavailable && !fleet.IsLeaseUnknown(err) {
		s.postpone(some, time.Now(), err)
		return nil
	}
	if err != nil {
		return err
	}
	if !answer.Succeeded && some[0].phase == holding {
		_, err := s.inspect() // inspect ends the candidacies whose keys have changed
		return err
	}
	for _, c := range some {
		c.wrote(answer.Succeeded, answer.Header.GetRevision())
	}
	return nil
}

// postpone logs an error and repeats the request later.
func (s *session) postpone(some []*candidacy, now time.Time, err error) {
	s.Logger.Warn("fleet: the node cannot take or give up a lock", "lock", some[0].Lock.String(), "of", len(some), "error", fleet.Explain(err))
	for _, c := range some {
		c.next = now.Add(s.TTL / 3)
	}
}
