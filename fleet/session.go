package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/backoff"
)

var (
	// errLeaseLost says that etcd no longer knows a lease of the node.
	errLeaseLost = errors.New("etcd has ended the lease of the node; the node is published again")
	// errNameTaken says that another daemon holds the name of the node.
	errNameTaken = errors.New("another daemon holds the name of the node")
	// errSilent says that a lease was not renewed in time.
	errSilent = errors.New("etcd did not renew the lease of the node in time; see that it runs and can be reached")
)

// session is the time from one stream of renewals to its end.
type session struct {
	*Publisher
	store  store
	stream keepAliveStream
	cancel context.CancelCauseFunc
	// interval is the least time to the next write; last is when the last one was.
	interval time.Duration
	last     time.Time
}

// run returns with an error when a new session has to begin. When ctx ends, it publishes that the node has stopped. Stood says that
// the session got as far as publishing the node.
func (s *session) run(ctx context.Context) (stood bool, err error) {
	living, cancel := context.WithCancelCause(ctx)
	s.cancel = cancel
	defer func() {
		if s.store != nil {
			s.store.close()
		}
	}()
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel(nil)
	if err = s.open(living); err == nil {
		stood = true
		s.count(func(st *Stats) { st.Sessions++ })
		look := make(chan struct{}, 1)
		keeping.Go(func() { cancel(s.keep(living, look)) })
		keeping.Go(func() { s.awaitLocks(living) })
		keeping.Go(func() { s.watchCordon(living) })
		err = s.follow(living, look)
	}
	if ctx.Err() != nil && s.stream != nil {
		s.leave(context.WithoutCancel(ctx)) // what was written last may have arrived
	}
	if cause := context.Cause(living); cause != nil {
		return stood, cause
	}
	return stood, err
}

// open connects and has the node published: what etcd has of it is checked, and written if it is not exactly what was written last.
func (s *session) open(ctx context.Context) (err error) {
	if s.store, err = s.dialer.dial(ctx, s.timeout); err != nil {
		return err
	}
	// The stream comes first. Etcd cannot be restored or replaced without ending it, so what is read after it is read from the etcd that
	// is kept to.
	if s.stream, err = s.store.keepAlive(ctx); err != nil {
		return err
	}
	found, err := s.look(ctx)
	if err != nil {
		return err
	}
	fresh, err := s.renewAll(ctx)
	if err != nil {
		return err
	}
	if fresh || s.held.record == nil || found != s.held.at {
		s.claim(found)
	}
	if _, err = s.publish(ctx); err == nil { // the index follows soon, and does not keep the node from being published
		s.named(true)
		s.succeeded(time.Time{})
	}
	return err
}

// look returns the revisions of the keys of the node, unless its name is taken.
func (s *session) look(ctx context.Context) (found revisions, err error) {
	response, err := s.store.commit(ctx, nil, []clientv3.Op{
		clientv3.OpGet(s.node + presenceKey), clientv3.OpGet(s.node+recordKey, clientv3.WithKeysOnly()),
	})
	if err != nil {
		return found, err
	}
	for _, kv := range response.Responses[0].GetResponseRange().GetKvs() {
		found.presence = kv.ModRevision
		var presence fleetv1.Presence
		if proto.Unmarshal(kv.Value, &presence) != nil {
			continue // nobody's
		}
		if by := presence.GetInstance(); by != s.instance && !slices.Contains(s.instances, by) {
			return found, fmt.Errorf("%w, %q: its instance is %s; this one publishes nothing and competes for no lock; give each node a name of "+
				"its own, or wait until its presence has expired if that one has just crashed", errNameTaken, s.config.Node, valid(by))
		}
	}
	for _, kv := range response.Responses[1].GetResponseRange().GetKvs() {
		found.record = kv.ModRevision
	}
	return found, nil
}

// renewAll renews the leases and grants new ones for those that there are not.
func (s *session) renewAll(ctx context.Context) (fresh bool, err error) {
	if fresh, err = s.renewOr(ctx, &s.leases.presence, s.config.Presence); err != nil {
		return false, err
	}
	granted, err := s.renewOr(ctx, &s.leases.retention, s.config.Retention)
	return fresh || granted, err
}

// renewOr renews a lease, or grants a new one if there is none.
func (s *session) renewOr(ctx context.Context, lease *clientv3.LeaseID, ttl time.Duration) (granted bool, err error) {
	err = errLeaseLost
	if *lease != 0 {
		err = s.renew(*lease)
	}
	if errors.Is(err, errLeaseLost) {
		*lease = 0
		*lease, err = s.store.grant(ctx, ttl)
		granted = true
	}
	return granted, err
}

// renew renews one lease. It blocks no longer than the timeout, because that then ends the stream.
func (s *session) renew(lease clientv3.LeaseID) error {
	response, err := ask(s.stream, &pb.LeaseKeepAliveRequest{ID: int64(lease)}, s.timeout, func() { s.cancel(errSilent) })
	if err == nil && response.GetTTL() <= 0 {
		return errLeaseLost
	}
	return err
}

// keep renews the leases until the session ends or one cannot be renewed. After each renewal it has the conditions looked at.
func (s *session) keep(ctx context.Context, look chan<- struct{}) error {
	retention := time.Now().Add(around(s.config.Retention / 3))
	for backoff.Pause(ctx, around(s.config.Presence/3)) {
		if err := s.renew(s.leases.presence); err != nil {
			return err
		}
		if time.Now().After(retention) {
			if err := s.renew(s.leases.retention); err != nil {
				return err
			}
			retention = time.Now().Add(around(s.config.Retention / 3))
		}
		tell(look)
	}
	return nil
}

// maxSlowdown is how many times the least interval grows while changes do not end.
const maxSlowdown = 16

// follow writes what changes, until the session ends.
func (s *session) follow(ctx context.Context, look <-chan struct{}) error {
	var timer <-chan time.Time // nil if no write is planned
	s.interval, s.last = s.config.MinInterval, time.Now()
	failures := 0
	plan := func() {
		if timer == nil {
			// The jitter is for changes that come to many nodes at once.
			pause := max(time.Until(s.last.Add(s.interval)), 0) + s.config.MinInterval/10 + spread(s.config.MinInterval*9/10)
			timer = time.NewTimer(pause).C
		}
	}
	plan() // a change may have come while nobody listened
	changes := s.changes
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case _, open := <-changes:
			if !open {
				changes = nil
				continue
			}
			plan()
		case <-look:
			if timer == nil && !proto.Equal(s.record(), s.held.record) {
				plan()
			}
		case <-timer:
			timer = nil
			written, err := s.update(ctx)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, errLeaseLost), errors.Is(err, errNameTaken):
				return err
			case err != nil:
				failures++
				s.failed(err)
				timer = time.NewTimer(retry.After(failures)).C
			default:
				failures = 0
				s.succeeded(time.Time{})
				s.slowDown(written)
			}
		}
	}
}

// slowDown makes writes rarer while changes do not end.
func (s *session) slowDown(written bool) {
	if !written {
		return
	}
	now := time.Now()
	if now.Sub(s.last) < 3*s.interval {
		s.interval = min(2*s.interval, maxSlowdown*s.config.MinInterval)
	} else {
		s.interval = s.config.MinInterval
	}
	s.last = now
}

// update writes what is different from what was written last, of the node and of the index.
func (s *session) update(ctx context.Context) (written bool, err error) {
	if written, err = s.publish(ctx); err != nil {
		return written, err
	}
	return written, s.putIndex(ctx, s.held.record.GetPlugins())
}

// publish writes what is different from what was written last of the node.
func (s *session) publish(ctx context.Context) (written bool, err error) {
	if s.held.record == nil && !s.held.claim {
		found, err := s.look(ctx)
		if err != nil {
			return false, err
		}
		s.claim(found)
	}
	now := s.record()
	if proto.Equal(now, s.held.record) {
		return false, nil
	}
	return true, s.write(ctx, now)
}

// claim has everything written again.
func (s *session) claim(found revisions) {
	s.held = held{at: found, claim: true}
	for name := range s.indexed {
		s.indexed[name] = false
	}
}

// record returns what the node says of itself.
func (s *session) record() *fleetv1.NodeRecord {
	var unhealthy map[string]bool
	if s.config.Unhealthy != nil {
		unhealthy = s.config.Unhealthy()
	}
	return &fleetv1.NodeRecord{
		Instance: s.instance, Address: s.config.Address, Version: s.config.Version, StartedAt: timestamp(s.started),
		Conditions: conditionRecords(s.config.Local.Conditions()), Labels: s.config.Labels,
		Plugins: pluginRecords(s.config.Local.Plugins(), unhealthy),
	}
}

// stopPatience bounds how long the end of a publisher waits for etcd to know of it.
const stopPatience = 2 * time.Second

// leave says that the node has stopped, if it can have been published: a record without a lease would stay forever.
func (s *session) leave(ctx context.Context) {
	if s.leases.presence == 0 || s.leases.retention == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	record := proto.CloneOf(s.held.record) // with the plugins that it had
	if record == nil {
		record = s.record()
	}
	record.StoppedAt = timestamp(time.Now())
	value, err := deterministic.Marshal(record)
	if err != nil {
		return
	}
	response, err := s.store.commit(ctx, s.mine(), []clientv3.Op{
		clientv3.OpDelete(s.node + presenceKey),
		clientv3.OpPut(s.node+recordKey, string(value), clientv3.WithLease(s.leases.retention)),
	})
	if err != nil || !response.Succeeded {
		s.config.Logger.Info("fleet: could not publish that the node stops; it is shown as unreachable when its lease expires",
			"node", s.config.Node, "error", err)
	}
}

// mine is the condition of every write but the first: the presence key still has the node's own lease.
func (s *session) mine() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(s.node+presenceKey), "=", s.leases.presence)}
}

// awaitLocks tells once that a node competes for locks, and ends with that or the session. It waits in etcd, where a watch without events
// costs no request. A node that may not know ends here, too.
func (s *session) awaitLocks(ctx context.Context) {
	if s.config.Locked == nil {
		return
	}
	for failures := 1; ; failures++ {
		found, err := s.locked(ctx)
		switch {
		case found:
			s.config.Locked()
			return
		case isDenied(err):
			s.config.Logger.Info("fleet: this node may not read who competes for locks, and calls its own plugins of types that fleet.exclusive "+
				"does not list, whoever else has them; if the fleet has exclusive plugins, grant its user read on the range in etcd",
				"node", s.config.Node, "range", s.config.Space.contenders())
			return
		case failures == 1 && ctx.Err() == nil:
			s.config.Logger.Warn("fleet: cannot be told of nodes that compete for locks, and tries again", "node", s.config.Node,
				"error", Explain(err))
		}
		if !backoff.Pause(ctx, retry.After(failures)) {
			return
		}
	}
}

// locked waits until there are contenders. The error says why it stopped waiting.
func (s *session) locked(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := s.config.Space.contenders()
	now, err := s.store.get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil || len(now.Kvs) > 0 {
		return err == nil, err
	}
	from := clientv3.WithRev(now.Header.GetRevision() + 1)
	for response := range s.store.watch(ctx, prefix, clientv3.WithPrefix(), from, clientv3.WithFilterDelete()) {
		if err := watchError(response); err != nil || len(response.Events) > 0 {
			return err == nil, err
		}
	}
	return false, cmp.Or(context.Cause(ctx), errEnded)
}

// watchCordon calls Cordoned with whether the node is drained, and again after each change, until the session ends.
func (s *session) watchCordon(ctx context.Context) {
	if s.config.Cordoned == nil {
		return
	}
	for failures := 1; ; failures++ {
		err := s.followCordon(ctx)
		if failures == 1 && ctx.Err() == nil {
			s.config.Logger.Warn("fleet: cannot read whether the node is drained, and tries again", "node", s.config.Node, "error", Explain(err))
		}
		if !backoff.Pause(ctx, retry.After(failures)) {
			return
		}
	}
}

// followCordon returns with the reason why the cordon cannot be followed any more.
func (s *session) followCordon(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key, known := s.node+cordonKey, facts{}
	now, err := s.store.get(ctx, key)
	if err != nil {
		return err
	}
	for _, kv := range now.Kvs {
		known.put(cordonKey, kv)
	}
	s.config.Cordoned(known.cordon)
	for response := range s.store.watch(ctx, key, clientv3.WithRev(now.Header.GetRevision()+1)) {
		if err := watchError(response); err != nil {
			return err
		}
		for _, event := range response.Events {
			known.delete(cordonKey)
			if event.IsCreate() || event.IsModify() {
				known.put(cordonKey, event.Kv)
			}
			s.config.Cordoned(known.cordon)
		}
	}
	return cmp.Or(context.Cause(ctx), errEnded)
}
