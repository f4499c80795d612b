package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
)

var (
	// errLeaseLost says that etcd does not know a lease of the node any more.
	errLeaseLost = errors.New("etcd has ended the lease of the node; it is published anew")
	// errNameTaken says that another daemon holds the name of the node.
	errNameTaken = errors.New("another daemon holds the name of the node")
	// errSilent says that a lease was not renewed in time.
	errSilent = errors.New("etcd did not renew the lease of the node in time; see that it runs and can be reached")
)

// held is what etcd has of the node, as far as it is known.
type held struct {
	content content
	// revisions has the revision of each key, by its name below the range of the node; nil if that is not known.
	revisions map[string]int64
	// slot has the generation that counts.
	slot int
}

// session is the time from one stream of renewals to its end.
type session struct {
	*Publisher
	store  store
	stream keepAliveStream
	// stood says that the session got as far as having the node published.
	stood bool
	// present is the revision of the presence key as it was found; zero for none.
	present int64
	// interval is the least time to the next write; last is when the last one was.
	interval time.Duration
	last     time.Time
}

// run returns with an error when the session has to be begun anew. When ctx ends, it says goodbye.
func (s *session) run(ctx context.Context) error {
	living, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() {
		if s.store != nil {
			s.store.close()
		}
	}()
	if err := s.open(living, cancel); err != nil {
		if ctx.Err() != nil && s.stream != nil {
			s.leave(context.WithoutCancel(ctx)) // what was written last may have arrived
		}
		if ctx.Err() == nil && living.Err() != nil {
			return context.Cause(living)
		}
		return err
	}
	s.count(func(st *Stats) { st.Sessions++ })
	s.stood = true

	look := make(chan struct{}, 1)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel(nil)
	keeping.Go(func() { cancel(s.keep(living, cancel, look)) })
	err := s.follow(living, look)
	if ctx.Err() != nil {
		s.leave(context.WithoutCancel(ctx))
		return nil
	}
	if cause := context.Cause(living); living.Err() != nil && cause != nil {
		return cause
	}
	return err
}

// open connects and has the node published: what etcd has of it is checked, and written if it is not exactly what was written last.
func (s *session) open(ctx context.Context, cancel context.CancelCauseFunc) (err error) {
	waiting, done := within(ctx, s.config.Timeout)
	defer done()
	if s.store, err = s.dialer.dial(waiting); err != nil {
		return err
	}
	// The stream comes first. Etcd cannot be restored or replaced without ending it, so what is read after it is read from the etcd that
	// is kept to.
	if s.stream, err = s.store.keepAlive(ctx); err != nil {
		return err
	}
	revisions, err := s.look(ctx)
	if err != nil {
		return err
	}
	fresh, err := s.renewAll(ctx, cancel)
	if err != nil {
		return err
	}
	now, err := s.wanted()
	if err != nil {
		return err
	}
	if !fresh && s.held.revisions != nil && maps.Equal(revisions, s.held.revisions) {
		if now.same(s.held.content) {
			s.succeeded(time.Time{})
			return nil
		}
		return s.write(ctx, now, false)
	}
	s.held = held{revisions: revisions}
	return s.write(ctx, now, true)
}

// look returns the revisions of the keys of the node, unless its name is taken.
func (s *session) look(ctx context.Context) (map[string]int64, error) {
	ctx, cancel := within(ctx, s.config.Timeout)
	defer cancel()
	response, err := s.store.commit(ctx, nil, []clientv3.Op{
		clientv3.OpGet(s.node + presenceKey),
		clientv3.OpGet(s.node, clientv3.WithPrefix(), clientv3.WithKeysOnly()),
	}, nil)
	if err != nil {
		return nil, err
	}
	s.present = 0
	for _, kv := range response.Responses[0].GetResponseRange().GetKvs() {
		s.present = kv.ModRevision
		var presence fleetv1.Presence
		if err := decode(kv.Value, &presence); err != nil && !errors.Is(err, errNewer) {
			continue // nobody's
		}
		if presence.GetInstance() != s.instance {
			return nil, fmt.Errorf("%w, %q: its instance is %s; give each node a name of its own, or wait up to %v if that one has just crashed",
				errNameTaken, s.config.Node, valid(presence.GetInstance()), s.config.Presence)
		}
	}
	revisions := map[string]int64{}
	for _, kv := range response.Responses[1].GetResponseRange().GetKvs() {
		revisions[strings.TrimPrefix(string(kv.Key), s.node)] = kv.ModRevision
	}
	return revisions, nil
}

// renewAll renews the leases and grants new ones for those that there are not.
func (s *session) renewAll(ctx context.Context, cancel context.CancelCauseFunc) (fresh bool, err error) {
	for _, l := range []struct {
		id  *clientv3.LeaseID
		ttl time.Duration
	}{{&s.leases.presence, s.config.Presence}, {&s.leases.retention, s.config.Retention}} {
		if *l.id != 0 {
			switch err := s.renew(*l.id, cancel); {
			case err == nil:
				continue
			case !errors.Is(err, errLeaseLost):
				return false, err
			}
		}
		granting, done := within(ctx, s.config.Timeout)
		id, err := s.store.grant(granting, l.ttl)
		done()
		if err != nil {
			return false, err
		}
		*l.id, fresh = id, true
	}
	return fresh, nil
}

// renew renews one lease. It blocks no longer than the timeout of the configuration, because cancel then ends the stream.
func (s *session) renew(lease clientv3.LeaseID, cancel context.CancelCauseFunc) error {
	timer := time.AfterFunc(s.config.Timeout, func() { cancel(errSilent) })
	defer timer.Stop()
	if err := s.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease)}); err != nil {
		if _, err := s.stream.Recv(); err != nil {
			return err // the reason, where there is one
		}
		return err
	}
	response, err := s.stream.Recv()
	switch {
	case err != nil:
		return err
	case response.GetTTL() <= 0:
		return errLeaseLost
	}
	return nil
}

// keep renews the leases until the session ends or one cannot be renewed. After each renewal it has the conditions looked at.
func (s *session) keep(ctx context.Context, cancel context.CancelCauseFunc, look chan<- struct{}) error {
	retention := time.Now().Add(around(s.config.Retention / 3))
	for sleep(ctx, around(s.config.Presence/3)) {
		if err := s.renew(s.leases.presence, cancel); err != nil {
			return err
		}
		if time.Now().After(retention) {
			if err := s.renew(s.leases.retention, cancel); err != nil {
				return err
			}
			retention = time.Now().Add(around(s.config.Retention / 3))
		}
		select {
		case look <- struct{}{}:
		default:
		}
	}
	return nil
}

// maxSlowdown is how many times the least interval grows while changes do not end.
const maxSlowdown = 16

// follow writes what changes, until the session ends.
func (s *session) follow(ctx context.Context, look <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	if !timer.Stop() {
		<-timer.C
	}
	s.interval, s.last = s.config.MinInterval, time.Now()
	planned, failures := false, 0
	plan := func() {
		if planned {
			return
		}
		planned = true
		// The jitter is for changes that come to many nodes at once.
		timer.Reset(max(time.Until(s.last.Add(s.interval)), 0) + s.config.MinInterval/10 + spread(s.config.MinInterval*9/10))
	}
	// A change may have come while nobody listened.
	plan()
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
		case <-s.touched:
			plan()
		case <-look:
			if !planned && s.conditionsChanged() {
				plan()
			}
		case <-timer.C:
			planned = false
			written, err := s.update(ctx)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, errLeaseLost), errors.Is(err, errNameTaken):
				return err
			case err != nil:
				failures++
				s.failed(err)
				planned = true
				timer.Reset(retry.After(failures))
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

// update writes what is different from what was written last.
func (s *session) update(ctx context.Context) (written bool, err error) {
	now, err := s.wanted()
	if err != nil {
		return false, err
	}
	if s.held.revisions != nil {
		if now.same(s.held.content) {
			return false, nil
		}
		return true, s.write(ctx, now, false)
	}
	revisions, err := s.look(ctx)
	if err != nil {
		return false, err
	}
	s.held = held{revisions: revisions}
	return true, s.write(ctx, now, true)
}

// wanted returns what is to be published.
func (s *session) wanted() (content, error) {
	return newContent(s.record(), pluginRecords(s.config.Local.Plugins()))
}

func (s *session) record() *fleetv1.NodeRecord {
	s.mu.Lock()
	address := s.address
	s.mu.Unlock()
	return &fleetv1.NodeRecord{
		Format: format, Instance: s.instance, Address: address, Version: s.config.Version, StartedAt: timestamp(s.started),
		Conditions: conditionRecords(s.config.Local.Conditions()),
	}
}

func (s *session) conditionsChanged() bool {
	now, err := newContent(s.record(), nil)
	return err == nil && now.recordSum != s.held.content.recordSum
}

func (c content) same(other content) bool {
	return c.recordSum == other.recordSum && c.pluginsSum == other.pluginsSum
}

// leave says that the node has stopped, if it can have been published: a record without a lease would stay for ever.
func (s *session) leave(ctx context.Context) {
	if s.leases.presence == 0 || s.leases.retention == 0 {
		return
	}
	ctx, cancel := within(ctx, min(s.config.Timeout, 2*time.Second))
	defer cancel()
	record := s.record()
	record.StoppedAt = timestamp(time.Now())
	value, err := deterministic.Marshal(record)
	if err != nil {
		return
	}
	response, err := s.store.commit(ctx, s.mine(), []clientv3.Op{
		clientv3.OpDelete(s.node + presenceKey),
		clientv3.OpPut(s.node+recordKey, string(value), clientv3.WithLease(s.leases.retention)),
	}, nil)
	if err != nil || !response.Succeeded {
		s.log.Info("fleet: could not say that the node stops; it will be missed when its presence ends", "node", s.config.Node, "error", err)
	}
}

// mine is the condition of every write but the first: the presence key still hangs on the node's own lease.
func (s *session) mine() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(s.node+presenceKey), "=", s.leases.presence)}
}

// isLeaseLost says whether a write failed because a lease is unknown.
func isLeaseLost(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }
