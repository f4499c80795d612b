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

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sync/errgroup"
)

// errTermOver says that a lease could not be renewed in time.
var errTermOver = errors.New("the lease of its locks could not be renewed in time")

// stopPatience bounds how long the end waits for etcd to take the lease back.
const stopPatience = 2 * time.Second

// term is the time of one lease.
type term struct {
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
	defer e.disconnect()
	failures := 0
	for client := e.connect(ctx); client != nil && ctx.Err() == nil; {
		if len(e.wants()) == 0 {
			select {
			case <-e.changed:
			case <-ctx.Done():
			}
			continue
		}
		t, err := e.begin(ctx, client)
		if err == nil {
			failures = 0
			err = e.serve(ctx, client, t)
			client = e.connect(ctx) // serve has closed the other one
		} else {
			failures++
		}
		if ctx.Err() != nil || err == nil {
			continue
		}
		if failures <= 1 {
			e.log.Warn("fleet: the node holds no locks", "error", explain(err))
		}
		sleep(ctx, min(retry.After(failures+1), e.config.TTL))
	}
}

// disconnect closes the client, if there is one.
func (e *Elector) disconnect() {
	e.mu.Lock()
	client := e.client
	e.client = nil
	e.mu.Unlock()
	if client != nil {
		_ = client.Close()
	}
}

// connect returns a client of etcd, nil if ctx ends before there is one.
func (e *Elector) connect(ctx context.Context) *clientv3.Client {
	for failures := 1; ; failures++ {
		client, err := e.cluster.Client()
		if err == nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.client = client
			return client
		}
		if failures == 1 {
			e.log.Warn("fleet: cannot compete for locks", "error", err)
		}
		if !sleep(ctx, retry.After(failures)) {
			return nil
		}
	}
}

// begin gets a lease.
func (e *Elector) begin(ctx context.Context, client *clientv3.Client) (*term, error) {
	sent := time.Now()
	granting, cancel := within(ctx, e.config.Timeout)
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
	t := &term{lease: granted.ID, session: session}
	t.living, t.end = context.WithCancelCause(context.WithoutCancel(ctx))
	t.timer = time.AfterFunc(e.config.TTL, func() { t.end(errTermOver) })
	t.extend(sent, e.config.TTL)
	return t, nil
}

// serve competes for as long as the lease lasts, and until ctx ends.
func (e *Elector) serve(ctx context.Context, client *clientv3.Client, t *term) error {
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
		revoking, cancel := within(context.WithoutCancel(ctx), stopPatience)
		_, _ = client.Revoke(revoking, t.lease)
		cancel()
		// An election gives up with a request that only the end of its client ends.
		e.disconnect()
		running.Wait()
	}()
	defer context.AfterFunc(ctx, func() { t.end(context.Cause(ctx)) })()
	running.Go(func() { e.renew(client, t) })
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
				e.campaign(campaigning, client, t, l)
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
func (e *Elector) renew(client *clientv3.Client, t *term) {
	pause, checked := e.config.TTL/3, time.Now()
	for sleep(t.living, pause) {
		sent := time.Now()
		asking, cancel := within(t.living, e.config.Timeout/2)
		_, err := client.KeepAliveOnce(clientv3.WithRequireLeader(asking), t.lease)
		cancel()
		pause = e.config.TTL / 20
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			t.end(err)
		}
		if err != nil {
			continue
		}
		t.extend(sent, e.config.TTL)
		checking, cancel := within(t.living, e.config.TTL/3)
		err = e.check(checking, client, t)
		cancel()
		switch {
		case err == nil:
			pause, checked = e.config.TTL/3, sent
		case sent.Sub(checked) > e.config.TTL:
			t.end(fmt.Errorf("cannot find out whether the locks are still this node's: %w", err))
		}
	}
}

// check ends the holds whose keys do not stand any more as this node made them: somebody else removed them, and another node may hold the
// lock. A hold whose key could not be read is not known to stand, which is an error.
func (e *Elector) check(ctx context.Context, client *clientv3.Client, t *term) error {
	e.mu.Lock()
	holds := slices.Collect(maps.Values(e.held))
	e.mu.Unlock()
	var requests errgroup.Group
	requests.SetLimit(checksAtOnce)
	for some := range slices.Chunk(holds, checkedAtOnce) {
		requests.Go(func() error {
			asking, cancel := within(ctx, e.config.Timeout/2)
			defer cancel()
			var same []clientv3.Cmp
			for _, h := range some {
				same = append(same, clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.Token),
					clientv3.Compare(clientv3.LeaseValue(h.key), "=", int64(t.lease)))
			}
			all, err := client.Txn(asking).If(same...).Commit()
			if err == nil && !all.Succeeded {
				err = e.loseFallen(asking, client, t, some)
			}
			return err
		})
	}
	return requests.Wait()
}

const (
	// checkedAtOnce is the number of holds that one request asks about: etcd takes twice as many comparisons.
	checkedAtOnce = 64
	// checksAtOnce is the number of such requests at a time.
	checksAtOnce = 8
)

// loseFallen ends those of the holds whose keys do not stand.
func (e *Elector) loseFallen(ctx context.Context, client *clientv3.Client, t *term, holds []*Hold) error {
	for _, h := range holds {
		stands, err := h.stands(ctx, client, t.lease)
		if err != nil {
			return err
		}
		if !stands && e.has(h) { // it may have been given up meanwhile
			e.log.Warn("fleet: the key of a lock was removed or replaced by somebody else, and the node gives the lock up",
				"lock", h.lock.String(), "token", h.Token, "key", h.key)
			h.lose()
		}
	}
	return nil
}

// has says whether the node still has a hold.
func (e *Elector) has(h *Hold) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.held[h.lock] == h
}

// stands says whether the key of a hold is the one that this node made.
func (h *Hold) stands(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) (bool, error) {
	found, err := client.Get(ctx, h.key)
	if err != nil {
		return false, err
	}
	return len(found.Kvs) == 1 && found.Kvs[0].CreateRevision == h.Token && found.Kvs[0].Lease == int64(lease), nil
}

// campaign competes for one lock until ctx ends, then gives it up. It also returns when the lock is lost.
func (e *Elector) campaign(ctx context.Context, client *clientv3.Client, t *term, l Lock) {
	for failures := 1; ; failures++ {
		election := concurrency.NewElection(t.session, l.key(e.config.Space))
		if err := election.Campaign(clientv3.WithRequireLeader(ctx), e.config.Node); err == nil && ctx.Err() == nil {
			e.hold(ctx, client, t, l, election)
			e.resign(ctx, t, election)
			return
		}
		if !sleep(ctx, min(retry.After(failures), e.config.TTL/3)) {
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
	resigning, cancel := within(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	if err := election.Resign(resigning); err != nil {
		t.end(err) // whether it is given up is not known: the end of the lease makes sure
	}
}

// hold holds a lock until ctx ends, or until its key does not stand any more.
func (e *Elector) hold(ctx context.Context, client *clientv3.Client, t *term, l Lock, election *concurrency.Election) {
	ctx, lose := context.WithCancel(ctx)
	defer lose()
	token := election.Rev()
	h := &Hold{Token: token, lock: l, key: election.Key(), lose: lose, ended: ctx}
	// Whoever waits for a lock does not notice that its own key is removed meanwhile.
	asking, cancel := within(ctx, e.config.Timeout)
	stands, err := h.stands(clientv3.WithRequireLeader(asking), client, t.lease)
	cancel()
	if err != nil || !stands {
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
	e.log.Info("fleet: the node holds a lock", "lock", l.String(), "token", token)
	<-ctx.Done()
	calls := h.calls.Load()
	e.mu.Lock()
	if e.held[l] == h {
		delete(e.held, l)
	}
	e.mu.Unlock()
	e.log.Info("fleet: the node does not hold a lock any more", "lock", l.String(), "token", token)
	if calls > 0 {
		// Their ends are on the way to the plugin; nobody else begins until it had the time to notice.
		sleep(context.WithoutCancel(ctx), min(e.config.TTL/10, time.Second))
	}
}
