package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// errTermOver says that a lease could not be renewed in time.
var errTermOver = errors.New("the lease of its locks could not be renewed in time")

// errFallen says that the key of a lock is gone, or is not the one that this node created.
var errFallen = errors.New("the key of the lock is gone")

// errUnread says that etcd may have been restored since the contenders were read.
var errUnread = errors.New("the contenders have not been read since the last new connection to etcd")

// stopPatience bounds how long the end of a publisher, or of a hold, waits for etcd to know of it.
const stopPatience = 2 * time.Second

// term is the time of one lease.
type term struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
	roster *roster
	// narrow says that the node may write its own range only.
	narrow atomic.Bool
	// living ends with the term, at the latest when until has come.
	living context.Context //nolint:containedctx // It is the life of the term.
	end    context.CancelCauseFunc
	timer  *time.Timer

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
	return t.before(now) && t.living.Err() == nil
}

// before says whether a time is before the end. The caller holds mu.
func (t *term) before(now time.Time) bool {
	return now.Before(t.until) && now.Round(0).Before(t.until.Round(0))
}

// extend is called after a renewal that was sent at a time. One that comes too late ends the term: somebody may know that it was over.
func (t *term) extend(sent time.Time, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.until.IsZero() && !t.before(time.Now()) {
		t.end(errTermOver)
		return
	}
	t.until = sent.Add(ttl - ttl/10)
	t.timer.Reset(time.Until(t.until))
}

// Run competes until ctx ends; then it gives up all locks, which takes it no more than a few seconds, and returns. It may be called once.
func (e *Elector) Run(ctx context.Context) {
	failures := 0
	for delay := time.Duration(0); backoff.Pause(ctx, delay); delay = min(retry.After(failures+1), e.config.TTL) {
		stood, err := e.compete(ctx)
		if failures++; stood {
			failures = 0
		}
		if failures <= 1 && err != nil && ctx.Err() == nil {
			e.log.Warn("fleet: the node holds no locks", "error", explain(err))
		}
	}
}

// compete competes for as long as one lease lasts, as soon as there are locks to compete for. Stood says that there was a lease.
func (e *Elector) compete(ctx context.Context) (stood bool, err error) {
	for len(e.wants()) == 0 {
		select {
		case <-e.changed:
		case <-ctx.Done():
			return false, nil
		}
	}
	client, err := e.cluster.client(grpc.WithStatsHandler(&e.conns))
	if err != nil {
		return false, err
	}
	defer func() { _ = client.Close() }()
	t, err := e.begin(ctx, client)
	if err != nil {
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
	granting, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	granted, err := client.Grant(clientv3.WithRequireLeader(granting), int64(e.config.TTL/time.Second))
	if err != nil {
		return nil, err
	}
	t := &term{client: client, lease: granted.ID, roster: newRoster(e.config.Space, e.longest())}
	t.living, t.end = context.WithCancelCause(context.WithoutCancel(ctx))
	t.timer = time.AfterFunc(e.config.TTL, func() { t.end(errTermOver) })
	t.extend(sent, e.config.TTL)
	return t, nil
}

// longest returns the longest lease of a contender that was seen in any term. Etcd may be restored from a backup that knows nothing of a
// holder, and the term of this node may end meanwhile.
func (e *Elector) longest() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(e.config.TTL, e.seen)
}

// serve competes for as long as the lease lasts, and until ctx ends.
func (e *Elector) serve(ctx context.Context, t *term) error {
	e.mu.Lock()
	e.term = t
	e.mu.Unlock()
	var running, campaigning sync.WaitGroup
	defer func() {
		t.end(context.Canceled)
		t.timer.Stop()
		e.mu.Lock()
		e.seen = max(e.seen, t.roster.longestSeen())
		e.term = nil // a campaign that wins a lock after this knows that the term is over
		e.mu.Unlock()
		campaigning.Wait()
		// Others need not wait for the lease to end, if etcd can be told.
		revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		_, _ = t.client.Revoke(revoking, t.lease)
		cancel()
		running.Wait()
	}()
	defer context.AfterFunc(ctx, func() { t.end(context.Cause(ctx)) })()
	running.Go(func() { e.renew(t) })
	running.Go(func() { e.follow(t) })
	return e.conduct(t, &campaigning)
}

// conduct has a campaign for each lock that the node wants, until the term ends.
func (e *Elector) conduct(t *term, running *sync.WaitGroup) error {
	campaigns := map[Lock]context.CancelFunc{}
	over := make(chan Lock)
	begin := func(l Lock, do func(context.Context, *term, Lock)) {
		ctx, cancel := context.WithCancel(t.living)
		campaigns[l] = cancel
		running.Go(func() {
			defer cancel()
			do(ctx, t, l)
			select {
			case over <- l:
			case <-t.living.Done():
			}
		})
	}
	for {
		wanted := e.wants()
		for l, cancel := range campaigns {
			if !wanted[l] {
				cancel()
			}
		}
		// One that has been given up has to be over before the next one begins: both would have the same key.
		for l := range wanted {
			if campaigns[l] == nil {
				begin(l, e.campaign)
			}
		}
		for _, l := range t.roster.of(t.lease) {
			if campaigns[l] == nil { // etcd was restored, and has a key again that the node had removed
				begin(l, e.clear)
			}
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
		asking, cancel := context.WithTimeout(t.living, e.timeout/2)
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

// check ends the holds whose keys are no longer those that this node created: somebody else removed them, and another node may hold the
// lock soon. The error says that etcd did not answer, or that revisions went back.
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
				e.fell(h)
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

// fell ends a hold whose key is gone.
func (e *Elector) fell(h *Hold) {
	if h.ended.Err() != nil { // it was given up meanwhile
		return
	}
	e.log.Warn("fleet: the key of a lock was removed or replaced by somebody else, and the node gives the lock up",
		"lock", h.lock.String(), "token", h.Token, "key", h.key)
	h.lose()
}

// fallen returns the holds whose keys are not those that this node created.
func (e *Elector) fallen(ctx context.Context, t *term, holds ...*Hold) (fallen []*Hold, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout/2)
	defer cancel()
	requests := []clientv3.Op{clientv3.OpGet(e.config.Space.bases(), clientv3.WithPrefix())}
	for _, h := range holds {
		requests = append(requests, clientv3.OpGet(h.key))
	}
	found, err := t.client.Txn(clientv3.WithRequireLeader(ctx)).Then(requests...).Commit()
	if err != nil {
		return nil, err
	}
	kept, _ := e.ledger.baseIn(found.Responses[0].GetResponseRange().GetKvs())
	base, back := e.ledger.see(found.Header.GetRevision(), kept)
	if back {
		return nil, errWentBack
	}
	for i, h := range holds {
		kvs := found.Responses[i+1].GetResponseRange().GetKvs()
		if len(kvs) != 1 || kvs[0].CreateRevision != h.made || kvs[0].Lease != int64(t.lease) {
			fallen = append(fallen, h)
		}
	}
	if !e.conns.since().Before(t.roster.basis()) {
		return fallen, errUnread
	}
	return fallen, e.raise(ctx, t.client, base, kept)
}

// stand creates the keys with which the node competes for a lock.
func (e *Elector) stand(ctx context.Context, t *term, h *Hold) error {
	for {
		own, older := contenderKeys(e.config.Space, e.config.Node, h.lock, t.lease)
		h.key, h.older = own, older
		if t.narrow.Load() {
			h.older = ""
		}
		absent := clientv3.Compare(clientv3.CreateRevision(own), "=", 0)
		answer, err := e.change(ctx, t, absent, h.puts(e, t, contenderWaits, candidatePrefix), h.deletes())
		switch {
		case errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) && h.older != "":
			t.narrow.Store(true)
			continue
		case err == nil && !answer.Succeeded:
			err = errFallen // what was there is gone now
		}
		if err == nil {
			h.made, h.stood = answer.Header.GetRevision(), time.Now()
		}
		return err
	}
}

// change makes one change of the keys of a lock.
func (e *Elector) change(ctx context.Context, t *term, when clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	return t.client.Txn(clientv3.WithRequireLeader(ctx)).If(when).Then(then...).Else(otherwise...).Commit()
}

// puts returns the requests that write the keys of a hold: what its own says, and what stands before the name of the node in the other.
func (h *Hold) puts(e *Elector, t *term, says, before string) []clientv3.Op {
	puts := []clientv3.Op{clientv3.OpPut(h.key, fmt.Sprint(says, int64(e.config.TTL/time.Second)), clientv3.WithLease(t.lease))}
	if h.older != "" {
		puts = append(puts, clientv3.OpPut(h.older, before+e.config.Node, clientv3.WithLease(t.lease)))
	}
	return puts
}

// deletes returns the requests that remove the keys of a hold.
func (h *Hold) deletes() []clientv3.Op {
	deletes := []clientv3.Op{clientv3.OpDelete(h.key)}
	if h.older != "" {
		deletes = append(deletes, clientv3.OpDelete(h.older))
	}
	return deletes
}

// mine is the condition that the key of a hold is the one that was created. Its lease is that of the term, which is part of its name.
func (h *Hold) mine() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.made)
}

// await waits until the lock can be taken, and gets the token. An error says that the node does not hold it.
func (e *Elector) await(ctx context.Context, t *term, h *Hold) error {
	wait := time.NewTimer(e.config.TTL)
	defer wait.Stop()
	for {
		now, free, basis, changed := t.roster.turn(h, t.lease)
		if now == turnGone {
			return errFallen
		}
		if now == turnFirst {
			pause := time.Until(free)
			if pause <= 0 {
				if taken, err := e.take(ctx, t, h, basis); taken || err != nil {
					return err
				}
				pause = e.config.TTL / 100
			}
			wait.Reset(pause)
		}
		select {
		case <-changed:
		case <-wait.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take writes the key of a lock again, which gives the token. The same transaction writes the base to the node's own key, since the key
// from which the node knows the base may be removed. Taken is false if there is a greater base meanwhile, or if etcd may have been restored
// since the roster that began at basis.
func (e *Elector) take(ctx context.Context, t *term, h *Hold, basis time.Time) (taken bool, err error) {
	then := h.puts(e, t, contenderWaits, candidatePrefix)
	wrote := e.ledger.known()
	if wrote > 0 {
		then = append(then, clientv3.OpPut(e.config.Space.TokenBaseKey(e.config.Node), strconv.FormatInt(wrote, 10)))
	}
	answer, err := e.change(ctx, t, h.mine(), append(then, clientv3.OpGet(e.config.Space.bases(), clientv3.WithPrefix())), nil)
	switch {
	case err != nil:
		return false, err
	case !answer.Succeeded:
		return false, errFallen
	}
	kept, _ := e.ledger.baseIn(answer.Responses[len(answer.Responses)-1].GetResponseRange().GetKvs())
	base, back := e.ledger.see(answer.Header.GetRevision(), kept)
	if back {
		t.end(errWentBack)
		return false, errWentBack
	}
	now, free, still, _ := t.roster.turn(h, t.lease)
	if base != wrote || now != turnFirst || time.Now().Before(free) || !still.Equal(basis) || !e.conns.since().Before(basis) {
		return false, nil
	}
	h.Token = base + answer.Header.GetRevision()
	return true, e.ledger.keep()
}

// campaign competes for one lock until ctx ends, then gives it up. It also returns when the lock is lost.
func (e *Elector) campaign(ctx context.Context, t *term, l Lock) {
	for failures := 1; ; failures++ {
		holding, lose := context.WithCancel(ctx)
		h := &Hold{lock: l, lose: lose, ended: holding}
		err := e.stand(ctx, t, h)
		if err == nil {
			if err = e.await(ctx, t, h); err == nil {
				e.hold(holding, t, h)
			}
		}
		lose()
		if err != nil && ctx.Err() == nil && !errors.Is(err, errFallen) {
			e.log.Warn("fleet: the node cannot take a lock that it may have", "lock", l.String(), "error", explain(err))
		}
		e.resign(ctx, t, h)
		if err == nil || !backoff.Pause(ctx, min(retry.After(failures), e.config.TTL/3)) {
			return
		}
	}
}

// clear removes the node's keys for a lock that it neither wants nor holds.
func (e *Elector) clear(ctx context.Context, t *term, l Lock) {
	h := &Hold{lock: l}
	h.key, h.older = contenderKeys(e.config.Space, e.config.Node, l, t.lease)
	if t.narrow.Load() {
		h.older = ""
	}
	e.resign(ctx, t, h)
}

// resign tells etcd that the node has given up a lock, unless its whole lease has ended.
func (e *Elector) resign(ctx context.Context, t *term, h *Hold) {
	if cause := context.Cause(t.living); errors.Is(cause, errTermOver) || isLeaseUnknown(cause) {
		return
	}
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	stands := clientv3.Compare(clientv3.LeaseValue(h.key), "=", t.lease)
	// The next holder begins when it reads that. The other key says nothing of it, so it is removed in the same transaction, after this one.
	leave := append([]clientv3.Op{clientv3.OpPut(h.key, contenderLeft, clientv3.WithLease(t.lease))}, h.deletes()[1:]...)
	_, err := e.change(resigning, t, stands, leave, nil)
	if err == nil {
		_, err = t.client.Txn(clientv3.WithRequireLeader(resigning)).Then(h.deletes()...).Commit()
	}
	if err != nil {
		t.end(err) // whether it is given up is not known: the end of the lease makes sure
	}
}

// hold holds a lock until ctx ends or its key is gone.
func (e *Elector) hold(ctx context.Context, t *term, h *Hold) {
	e.mu.Lock()
	if ctx.Err() != nil {
		e.mu.Unlock()
		return
	}
	e.held[h.lock] = h
	e.mu.Unlock()
	if now, _, _, _ := t.roster.turn(h, t.lease); now != turnFirst { // nobody told while it was not among those held
		e.fell(h)
	}
	e.log.Info("fleet: the node holds a lock", "lock", h.lock.String(), "token", h.Token)
	// Others call the node from here on, so not before it knows itself.
	if answer, err := e.change(ctx, t, h.mine(), h.puts(e, t, contenderHolds, ""), nil); err != nil || !answer.Succeeded {
		h.lose()
	}
	<-ctx.Done()
	calls := h.calls.Load()
	e.mu.Lock()
	if e.held[h.lock] == h {
		delete(e.held, h.lock)
	}
	e.mu.Unlock()
	e.log.Info("fleet: the node does not hold a lock any more", "lock", h.lock.String(), "token", h.Token)
	if calls > 0 {
		// Their ends are on the way to the plugin; nobody else begins until it had the time to notice.
		backoff.Pause(context.WithoutCancel(ctx), min(e.config.TTL/10, time.Second))
	}
}
