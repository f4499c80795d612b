package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sync/errgroup"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// errTermOver says that a lease could not be renewed in time.
var errTermOver = errors.New("the lease of its locks could not be renewed in time")

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
		client, err := e.cluster.Client()
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

// renew renews the lease until the term ends.
func (e *Elector) renew(t *term) {
	pause, checked := e.config.TTL/3, time.Now()
	for backoff.Pause(t.living, pause) {
		sent := time.Now()
		asking, cancel := context.WithTimeout(t.living, e.locks.timeout/2)
		_, err := t.client.KeepAliveOnce(clientv3.WithRequireLeader(asking), t.lease)
		cancel()
		pause = e.config.TTL / 20
		if isLeaseUnknown(err) {
			t.end(err)
		}
		if err != nil {
			continue
		}
		t.extend(sent, e.config.TTL)
		checking, cancel := context.WithTimeout(t.living, e.config.TTL/3)
		err = e.check(checking, t)
		cancel()
		switch {
		case err == nil:
			pause, checked = e.config.TTL/3, sent
		case sent.Sub(checked) > e.config.TTL:
			t.end(fmt.Errorf("cannot find out whether the locks are still this node's: %w", err))
		}
	}
}

const (
	// checkedAtOnce is the number of holds that one request asks about: etcd takes no more operations in one.
	checkedAtOnce = 128
	// checksAtOnce is the number of such requests at a time.
	checksAtOnce = 8
)

// check ends the holds whose keys do not stand any more as this node made them: somebody else removed them, and another node may hold the
// lock. A hold whose key could not be read is not known to stand, which is an error.
func (e *Elector) check(ctx context.Context, t *term) error {
	e.mu.Lock()
	holds := slices.Collect(maps.Values(e.held))
	e.mu.Unlock()
	var requests errgroup.Group
	requests.SetLimit(checksAtOnce)
	for some := range slices.Chunk(holds, checkedAtOnce) {
		requests.Go(func() error {
			fallen, err := t.fallen(ctx, e.locks.timeout/2, some...)
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
	return requests.Wait()
}

// fallen returns those of the holds whose keys are not the ones that this node made.
func (t *term) fallen(ctx context.Context, timeout time.Duration, holds ...*Hold) (fallen []*Hold, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var keys []clientv3.Op
	for _, h := range holds {
		keys = append(keys, clientv3.OpGet(h.key)) // with its value: without it, there would be no lease
	}
	found, err := t.client.Txn(clientv3.WithRequireLeader(ctx)).Then(keys...).Commit()
	if err != nil {
		return nil, err
	}
	for i, h := range holds {
		kvs := found.Responses[i].GetResponseRange().GetKvs()
		if len(kvs) != 1 || kvs[0].CreateRevision != h.Token || kvs[0].Lease != int64(t.lease) {
			fallen = append(fallen, h)
		}
	}
	return fallen, nil
}

// campaign competes for one lock until ctx ends, then gives it up. It also returns when the lock is lost.
func (e *Elector) campaign(ctx context.Context, t *term, l Lock) {
	for failures := 1; ; failures++ {
		election := concurrency.NewElection(t.session, l.key(e.config.Space))
		won := election.Campaign(clientv3.WithRequireLeader(ctx), e.config.Node) == nil && ctx.Err() == nil
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
	h := &Hold{Token: election.Rev(), lock: l, key: election.Key(), lose: lose, ended: ctx}
	// Whoever waits for a lock does not notice that its own key is removed meanwhile.
	if fallen, err := t.fallen(ctx, e.locks.timeout, h); err != nil || len(fallen) > 0 {
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
