package fleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// errTermOver says that a lease could not be renewed in time.
var errTermOver = errors.New("the lease of its locks could not be renewed in time")

// errFallen says that the key of a lock is not there any more, or not the first.
var errFallen = errors.New("the key of the lock is gone, or another one is before it")

// stopPatience bounds how long the end of a publisher, or of a hold, waits for etcd to know of it.
const stopPatience = 2 * time.Second

// term is the time of one lease.
type term struct {
	client  *clientv3.Client
	lease   clientv3.LeaseID
	session *concurrency.Session
	// living ends with the term, at the latest when until has come.
	living context.Context //nolint:containedctx // It is the life of the term.
	end    context.CancelCauseFunc
	timer  *time.Timer
	// holding are the locks that are held; guarded by Elector.mu while the term lives.
	holding sync.WaitGroup

	mu    sync.Mutex
	until time.Time // by both clocks of this machine
}

// valid says whether the lease is sure to hold. Both clocks are asked: the one that cannot be set stands still while the machine sleeps.
func (t *term) valid(now time.Time) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.until) && now.Round(0).Before(t.until.Round(0)) && t.living.Err() == nil
}

// extend is called after a renewal that was sent at a time.
func (t *term) extend(sent time.Time, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = sent.Add(ttl - ttl/10)
	t.timer.Reset(time.Until(t.until))
}

// Run competes until ctx ends; then it gives up all locks, which takes it no more than a few seconds, and returns. It may be called once.
func (e *Elector) Run(ctx context.Context) {
	defer func() { _ = e.locks.Close() }()
	failures := 0
	for delay := time.Duration(0); ctx.Err() == nil; delay = min(retry.After(failures+1), e.config.TTL) {
		// While the node waits, or wants no lock, Leader asks with the client.
		client, err := e.cluster.client(grpc.WithStatsHandler(&e.conns))
		if err == nil {
			e.locks.client.Store(client)
		}
		backoff.Pause(ctx, delay)
		stood := false
		if err == nil {
			stood, err = e.compete(ctx, client)
		}
		if failures++; stood {
			failures = 0
		}
		if failures <= 1 && err != nil && ctx.Err() == nil {
			e.log.Warn("fleet: the node holds no locks", "error", explain(err))
		}
	}
}

// compete competes for as long as one lease lasts, as soon as there are locks to compete for. Stood says that there was a lease.
func (e *Elector) compete(ctx context.Context, client *clientv3.Client) (stood bool, err error) {
	for len(e.wants()) == 0 {
		select {
		case <-e.changed:
		case <-ctx.Done():
			return false, nil
		}
	}
	t, err := e.begin(ctx, client)
	if err != nil {
		_ = e.locks.Close()
		return false, err
	}
	return true, e.serve(ctx, t)
}

// begin gets a lease.
func (e *Elector) begin(ctx context.Context, client *clientv3.Client) (*term, error) {
	if err := e.learn(ctx, client); err != nil {
		return nil, err
	}
	sent := time.Now()
	granting, cancel := context.WithTimeout(ctx, e.locks.timeout)
	defer cancel()
	granted, err := client.Grant(clientv3.WithRequireLeader(granting), int64(e.config.TTL/time.Second))
	if err != nil {
		return nil, err
	}
	// The session is needed for its lease only. Its own renewals do not tell when they were sent, so they are ended at once.
	ended, end := context.WithCancel(ctx)
	session, err := concurrency.NewSession(client, concurrency.WithLease(granted.ID), concurrency.WithContext(ended))
	end()
	if err != nil {
		return nil, err
	}
	session.Orphan()
	t := &term{client: client, lease: granted.ID, session: session}
	t.living, t.end = context.WithCancelCause(context.WithoutCancel(ctx))
	t.timer = time.AfterFunc(e.config.TTL, func() { t.end(errTermOver) })
	t.extend(sent, e.config.TTL)
	return t, nil
}

// serve competes for as long as the lease lasts, and until ctx ends.
func (e *Elector) serve(ctx context.Context, t *term) error {
	e.mu.Lock()
	e.term = t
	e.mu.Unlock()
	var running sync.WaitGroup
	defer func() {
		t.end(context.Canceled)
		t.timer.Stop()
		e.mu.Lock()
		e.term = nil // whoever wins a lock after this knows that the term is over
		e.mu.Unlock()
		t.holding.Wait()
		// Others need not wait for the lease to end, if etcd can be told.
		revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		_, _ = t.client.Revoke(revoking, t.lease)
		cancel()
		// An election gives up with a request that only the end of its client ends.
		_ = e.locks.Close()
		running.Wait()
	}()
	defer context.AfterFunc(ctx, func() { t.end(context.Cause(ctx)) })()
	running.Go(func() { e.renew(t) })
	campaigns := map[Lock]context.CancelFunc{}
	over := make(chan Lock)
	for {
		wanted := e.wants()
		for l, cancel := range campaigns {
			if !wanted[l] {
				cancel()
			}
		}
		// One that has been given up has to be over before the next one begins: both would have the same key.
		for l := range wanted {
			if campaigns[l] != nil {
				continue
			}
			campaigning, cancel := context.WithCancel(t.living)
			campaigns[l] = cancel
			running.Go(func() {
				defer cancel()
				e.campaign(campaigning, t, l)
				select {
				case over <- l:
				case <-t.living.Done():
				}
			})
		}
		select {
		case <-e.changed:
		case l := <-over:
			delete(campaigns, l)
		case <-t.living.Done():
			return context.Cause(t.living)
		}
	}
}

// renew renews the lease until the term ends. A lease whose locks may be another node's counts as one that was not renewed.
func (e *Elector) renew(t *term) {
	for pause := e.config.TTL / 3; backoff.Pause(t.living, pause); {
		sent := time.Now()
		asking, cancel := context.WithTimeout(t.living, e.locks.timeout/2)
		_, err := t.client.KeepAliveOnce(clientv3.WithRequireLeader(asking), t.lease)
		cancel()
		if err == nil {
			checking, cancel := context.WithTimeout(t.living, e.config.TTL/3)
			err = e.check(checking, t)
			cancel()
		}
		switch {
		case err == nil:
			t.extend(sent, e.config.TTL)
			pause = e.config.TTL / 3
		case isLeaseUnknown(err), errors.Is(err, errWentBack):
			t.end(err)
		default:
			pause = e.config.TTL / 20
		}
	}
}

const (
	// checkedAtOnce is the number of holds that one request asks about, besides the base: etcd takes no more than 128 operations in one.
	checkedAtOnce = 127
	// checksAtOnce is the number of such requests at a time.
	checksAtOnce = 8
)

// check ends the holds whose keys do not stand any more as this node made them, or are not the first: somebody else removed them, and
// another node may hold the lock. An error says that it could not be found out, or that revisions went back.
func (e *Elector) check(ctx context.Context, t *term) error {
	e.mu.Lock()
	holds := slices.Collect(maps.Values(e.held))
	e.mu.Unlock()
	var requests errgroup.Group
	requests.SetLimit(checksAtOnce)
	for some := range slices.Chunk(holds, checkedAtOnce) {
		requests.Go(func() error {
			fallen, err := e.fallen(ctx, t, some...)
			for _, h := range fallen {
				if h.ended.Err() == nil { // else it was given up meanwhile
					e.log.Warn("fleet: the key of a lock was removed or replaced by somebody else, and the node gives the lock up",
						"lock", h.lock.String(), "token", h.Token, "key", h.key)
					h.lose()
				}
			}
			return err
		})
	}
	if len(holds) == 0 {
		_, err := e.fallen(ctx, t) // so that the node knows how far revisions are
		return err
	}
	return requests.Wait()
}

// fallen returns those of the holds whose keys are not the ones that this node made, or not the first.
func (e *Elector) fallen(ctx context.Context, t *term, holds ...*Hold) (fallen []*Hold, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.locks.timeout/2)
	defer cancel()
	requests := []clientv3.Op{clientv3.OpGet(e.config.Space.bases(), clientv3.WithPrefix())}
	for _, h := range holds {
		requests = append(requests, clientv3.OpGet(h.lock.key(e.config.Space)+"/", clientv3.WithFirstCreate()...))
	}
	found, err := t.client.Txn(clientv3.WithRequireLeader(ctx)).Then(requests...).Commit()
	if err != nil {
		return nil, err
	}
	if _, back := e.ledger.see(found.Header.GetRevision(), baseIn(found.Responses[0].GetResponseRange().GetKvs())); back {
		return nil, errWentBack
	}
	for i, h := range holds {
		if !h.stands(found.Responses[i+1], t.lease) {
			fallen = append(fallen, h)
		}
	}
	return fallen, nil
}

// stands says whether the first key of the lock is that of the hold.
func (h *Hold) stands(first *pb.ResponseOp, lease clientv3.LeaseID) bool {
	kvs := first.GetResponseRange().GetKvs()
	return len(kvs) == 1 && string(kvs[0].Key) == h.key && kvs[0].CreateRevision == h.made && kvs[0].Lease == int64(lease)
}

// confirm writes the key of a lock once more, and so gets the token. An error says that the node does not hold it.
func (e *Elector) confirm(ctx context.Context, t *term, h *Hold) error {
	for { // until no holder can be left that etcd has forgotten
		connected := e.conns.since()
		if !backoff.Pause(ctx, time.Until(connected.Add(e.config.TTL))) {
			return context.Cause(ctx)
		}
		asking, cancel := context.WithTimeout(ctx, e.locks.timeout)
		answer, err := t.client.Txn(clientv3.WithRequireLeader(asking)).If(
			clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.made), clientv3.Compare(clientv3.LeaseValue(h.key), "=", t.lease),
		).Then(
			clientv3.OpPut(h.key, candidatePrefix+e.config.Node, clientv3.WithLease(t.lease)),
			clientv3.OpGet(e.config.Space.bases(), clientv3.WithPrefix()),
			clientv3.OpGet(h.lock.key(e.config.Space)+"/", clientv3.WithFirstCreate()...),
		).Commit()
		cancel()
		switch {
		case err != nil:
			return err
		case !answer.Succeeded || !h.stands(answer.Responses[2], t.lease):
			return errFallen
		}
		base, back := e.ledger.see(answer.Header.GetRevision(), baseIn(answer.Responses[1].GetResponseRange().GetKvs()))
		if back {
			t.end(errWentBack)
			return errWentBack
		}
		if h.Token = base + answer.Header.GetRevision(); e.conns.since().Equal(connected) {
			return e.ledger.keep()
		}
	}
}

// announce tells readers that the node holds a lock.
func (e *Elector) announce(ctx context.Context, t *term, h *Hold) error {
	asking, cancel := context.WithTimeout(ctx, e.locks.timeout)
	defer cancel()
	answer, err := t.client.Txn(clientv3.WithRequireLeader(asking)).If(
		clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.made), clientv3.Compare(clientv3.LeaseValue(h.key), "=", t.lease),
	).Then(clientv3.OpPut(h.key, e.config.Node, clientv3.WithLease(t.lease))).Commit()
	if err == nil && !answer.Succeeded {
		err = errFallen
	}
	return err
}

// campaign competes for one lock until ctx ends, then gives it up. It also returns when the lock is lost.
func (e *Elector) campaign(ctx context.Context, t *term, l Lock) {
	for failures := 1; ; failures++ {
		election := concurrency.NewElection(t.session, l.key(e.config.Space))
		won := election.Campaign(clientv3.WithRequireLeader(ctx), candidatePrefix+e.config.Node) == nil && ctx.Err() == nil
		if won {
			e.hold(ctx, t, l, election)
		}
		if won || !backoff.Pause(ctx, min(retry.After(failures), e.config.TTL/3)) {
			e.resign(ctx, t, election)
			return
		}
	}
}

// resign gives a lock up, unless its whole lease is.
func (e *Elector) resign(ctx context.Context, t *term, election *concurrency.Election) {
	if t.living.Err() != nil {
		return
	}
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	if err := election.Resign(resigning); err != nil {
		t.end(err) // whether it is given up is not known: the end of the lease makes sure
	}
}

// hold holds a lock until ctx ends, or until its key does not stand any more.
func (e *Elector) hold(ctx context.Context, t *term, l Lock, election *concurrency.Election) {
	ctx, lose := context.WithCancel(ctx)
	defer lose()
	h := &Hold{made: election.Rev(), lock: l, key: election.Key(), lose: lose, ended: ctx}
	// Whoever waits for a lock does not notice that its own key is removed meanwhile.
	if err := e.confirm(ctx, t, h); err != nil {
		if ctx.Err() == nil && !errors.Is(err, errFallen) {
			e.log.Warn("fleet: the node cannot take a lock that it may have", "lock", l.String(), "error", explain(err))
		}
		return
	}
	e.mu.Lock()
	if ctx.Err() != nil {
		e.mu.Unlock()
		return
	}
	t.holding.Add(1)
	defer t.holding.Done()
	e.held[l] = h
	e.mu.Unlock()
	e.log.Info("fleet: the node holds a lock", "lock", l.String(), "token", h.Token)
	// Others call the node from here on, so not before it knows itself.
	if err := e.announce(ctx, t, h); err != nil {
		lose()
	}
	<-ctx.Done()
	calls := h.calls.Load()
	e.mu.Lock()
	if e.held[l] == h {
		delete(e.held, l)
	}
	e.mu.Unlock()
	e.log.Info("fleet: the node does not hold a lock any more", "lock", l.String(), "token", h.Token)
	if calls > 0 {
		// Their ends are on the way to the plugin; nobody else begins until it had the time to notice.
		backoff.Pause(context.WithoutCancel(ctx), min(e.config.TTL/10, time.Second))
	}
}
