package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

var (
	errLeaseLost = errors.New("etcd has ended the lease of the node; the node is published again")
	errNameTaken = errors.New("another daemon holds the name of the node")
	errSilent    = errors.New("etcd did not renew the lease of the node in time; see that it runs and can be reached")
)

// session publishes the node over one connection, with one stream of renewals.
type session struct {
	*Publisher
	store    store
	stream   pb.Lease_LeaseKeepAliveClient
	cancel   context.CancelCauseFunc
	interval time.Duration // the minimum time between two writes
	last     time.Time     // of the last write
}

// run publishes the node until ctx ends, and then that the node has stopped. It returns an error if a new session is needed. isPublished
// reports whether the session has published the node.
func (s *session) run(ctx context.Context) (isPublished bool, err error) {
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
		isPublished = true
		s.count(func(st *Stats) { st.Sessions++ })
		look := make(chan struct{}, 1)
		keeping.Go(func() { cancel(s.keep(living, look)) })
		keeping.Go(func() { s.awaitLocks(living) })
		keeping.Go(func() { s.watchCordon(living) })
		err = s.follow(living, look)
	}
	if ctx.Err() != nil && s.stream != nil {
		s.leave(context.WithoutCancel(ctx)) // even after an error, because the last write may have arrived
	}
	if cause := context.Cause(living); cause != nil {
		return isPublished, cause
	}
	return isPublished, err
}

// open connects and publishes the node, unless etcd has the record that was written last.
func (s *session) open(ctx context.Context) (err error) {
	if s.store, err = s.dialer.dial(ctx, s.timeout); err != nil {
		return err
	}
	// Open the stream first. Etcd cannot be restored or replaced without ending it, so everything that is read later is from the same
	// history.
	if s.stream, err = s.store.keepAlive(ctx); err != nil {
		return err
	}
	found, err := s.look(ctx)
	if err != nil {
		return err
	}
	isNew, err := s.renewAll(ctx)
	if err != nil {
		return err
	}
	if isNew || s.held.record == nil || found != s.held.at {
		s.claim(found)
	}
	if _, err = s.publish(ctx); err == nil { // follow writes the rest of the index
		s.config.Named(true)
		s.succeeded()
	}
	return err
}

// look returns the revisions of the keys of the node. It fails if another daemon has the name.
func (s *session) look(ctx context.Context) (found revisions, err error) {
	response, err := s.store.commit(ctx, nil, []clientv3.Op{
		clientv3.OpGet(s.node + keys.Presence), clientv3.OpGet(s.node+keys.Record, clientv3.WithKeysOnly()),
	})
	if err != nil {
		return found, err
	}
	for _, kv := range response.Responses[0].GetResponseRange().GetKvs() {
		found.presence = kv.ModRevision
		var presence fleetv1.Presence
		if proto.Unmarshal(kv.Value, &presence) != nil {
			continue // the presence has no owner
		}
		if by := presence.GetInstance(); by != s.instance && !slices.Contains(s.instances, by) {
			return found, fmt.Errorf("%w, %q: its instance is %s; this one publishes nothing and competes for no lock; give each node a name of "+
				"its own, or wait until its presence has expired if that one has just crashed", errNameTaken, s.config.Node, untrusted.Valid(by))
		}
	}
	for _, kv := range response.Responses[1].GetResponseRange().GetKvs() {
		found.record = kv.ModRevision
	}
	return found, nil
}

// renewAll renews the leases, and grants new ones if etcd does not have them. isNew reports whether it granted one.
func (s *session) renewAll(ctx context.Context) (isNew bool, err error) {
	ttls := map[*clientv3.LeaseID]time.Duration{&s.leases.presence: s.config.Presence, &s.leases.retention: s.config.Retention}
	for lease, ttl := range ttls {
		err = errLeaseLost
		if *lease != 0 {
			err = s.renew(*lease)
		}
		if errors.Is(err, errLeaseLost) {
			isNew = true
			*lease = 0
			*lease, err = s.store.grant(ctx, ttl)
		}
		if err != nil {
			return false, err
		}
	}
	return isNew, nil
}

// renew renews one lease. After the timeout, it ends the session and its stream.
func (s *session) renew(lease clientv3.LeaseID) error {
	defer time.AfterFunc(s.timeout, func() { s.cancel(errSilent) }).Stop()
	err := s.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease)})
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF, Recv returns the reason
		return err
	}
	response, err := s.stream.Recv()
	if err == nil && response.GetTTL() <= 0 {
		return errLeaseLost
	}
	return err
}

// keep renews the leases until the session ends or a lease cannot be renewed. After each renewal, it makes follow compare the record.
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
		Notify(look)
	}
	return nil
}

// follow writes changes until the session ends.
func (s *session) follow(ctx context.Context, look <-chan struct{}) error {
	var timer <-chan time.Time // nil if no write is planned
	s.interval, s.last = s.config.MinInterval, time.Now()
	failures := 0
	plan := func() {
		if timer == nil {
			// The jitter spreads simultaneous changes on many nodes.
			pause := max(time.Until(s.last.Add(s.interval)), 0) + s.config.MinInterval/10 + spread(s.config.MinInterval*9/10)
			timer = time.NewTimer(pause).C
		}
	}
	plan() // the node may have changed before the session
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.changes:
			plan()
		case <-look:
			if timer == nil && !proto.Equal(s.record(), s.held.record) {
				plan()
			}
		case <-timer:
			timer = nil
			written, err := s.publish(ctx)
			if err == nil {
				err = s.writeIndex(ctx, s.held.record.GetPlugins())
			}
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, errLeaseLost), errors.Is(err, errNameTaken):
				return err
			case err != nil:
				failures++
				s.failed(err)
				timer = time.NewTimer(Retry.After(failures)).C
			default:
				failures = 0
				s.succeeded()
				if written {
					s.slowDown(time.Now())
				}
			}
		}
	}
}

// slowDown increases the time between two writes up to 16 times while changes continue.
func (s *session) slowDown(now time.Time) {
	if now.Sub(s.last) < 3*s.interval {
		s.interval = min(2*s.interval, 16*s.config.MinInterval)
	} else {
		s.interval = s.config.MinInterval
	}
	s.last = now
}

// publish writes the node if it differs from what was written last.
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

// claim makes the next write claim the name and write everything.
func (s *session) claim(found revisions) {
	s.held = held{at: found, claim: true}
	for name := range s.indexed {
		s.indexed[name] = false
	}
}

func (s *session) record() *fleetv1.NodeRecord {
	return &fleetv1.NodeRecord{
		Instance: s.instance, Address: s.config.Address, Version: s.config.Version, StartedAt: timestamp(s.started),
		Conditions: conditionRecords(s.config.Local.Conditions()), Labels: s.config.Labels,
		Plugins: pluginRecords(s.config.Local.Plugins()),
	}
}

const stopPatience = 2 * time.Second // bounds leave

// leave publishes that the node has stopped. It does nothing without leases: a record without a lease would stay forever.
func (s *session) leave(ctx context.Context) {
	if s.leases.presence == 0 || s.leases.retention == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	record := proto.CloneOf(s.held.record)
	if record == nil {
		record = s.record()
	}
	record.StoppedAt = timestamp(time.Now())
	value, err := encodeRecord(record)
	if err != nil {
		return
	}
	response, err := s.store.commit(ctx, s.mine(), []clientv3.Op{
		clientv3.OpDelete(s.node + keys.Presence),
		clientv3.OpPut(s.node+keys.Record, string(value), clientv3.WithLease(s.leases.retention)),
	})
	if err != nil || !response.Succeeded {
		s.config.Logger.Info("fleet: could not publish that the node stops; it is shown as unreachable when its lease expires",
			"node", s.config.Node, "error", err)
	}
}

// mine returns the condition of every write except the first: the presence key has the lease of this session.
func (s *session) mine() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(s.node+keys.Presence), "=", s.leases.presence)}
}

// awaitLocks calls Locked when a node competes for locks. Until then, the watch makes no further requests.
func (s *session) awaitLocks(ctx context.Context) {
	if s.config.Locked != nil {
		s.keepWatching(ctx, "who competes for locks, and calls its own plugins of types that fleet.exclusive does not list, also if others do",
			s.space.ContenderSpace(), func(contender *mvccpb.KeyValue) bool {
				if contender != nil {
					s.config.Locked()
				}
				return contender != nil
			})
	}
}

// watchCordon calls Cordoned with whether the node is drained, and again after each change.
func (s *session) watchCordon(ctx context.Context) {
	if s.config.Cordoned != nil {
		s.keepWatching(ctx, "whether it is drained", s.node+keys.Cordon, func(value *mvccpb.KeyValue) bool {
			known := facts{}
			known.put(keys.Cordon, value)
			s.config.Cordoned(known.cordon)
			return false
		})
	}
}

// keepWatching repeats watch after errors, until take returns true, the session ends, or the node may not read the key.
func (s *session) keepWatching(ctx context.Context, what, key string, take func(*mvccpb.KeyValue) (enough bool)) {
	for failures := 1; ; failures++ {
		err := s.watch(ctx, key, take)
		switch {
		case err == nil:
			return
		case isDenied(err):
			s.config.Logger.Info("fleet: this node may not read "+what+"; grant its user read on the range in etcd", "node", s.config.Node,
				"range", key)
			return
		case failures == 1 && ctx.Err() == nil:
			s.config.Logger.Warn("fleet: this node cannot read "+what+"; it tries again", "node", s.config.Node, "error", Explain(err))
		}
		if !backoff.Pause(ctx, Retry.After(failures)) {
			return
		}
	}
}

// watch calls take with the value of a key, or of the first key below it, nil for none, and again after each change, until take returns
// true.
func (s *session) watch(ctx context.Context, key string, take func(*mvccpb.KeyValue) (enough bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	now, err := s.store.get(ctx, key, clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil {
		return err
	}
	if take(cmp.Or(append(now.Kvs, nil)...)) {
		return nil
	}
	for response := range s.store.watch(ctx, key, clientv3.WithPrefix(), clientv3.WithRev(now.Header.GetRevision()+1)) {
		if err := watchError(response); err != nil {
			return err
		}
		for _, event := range response.Events {
			if take(valueOf(event)) {
				return nil
			}
		}
	}
	return cmp.Or(context.Cause(ctx), errEnded)
}
