package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

const (
	// pageSize is the number of keys of one page of a list, unless their values are too large for one message.
	pageSize = 500
	// maxDeadAsked bounds for how many dead nodes etcd is asked when they were last alive.
	maxDeadAsked = 256
)

var (
	// errHistory says that etcd's history is not the one that the reader knows.
	errHistory = errors.New("etcd was restored, replaced or compacted; the fleet is read again")
	// errQuiet says that a watch did not begin in time.
	errQuiet = errors.New("etcd did not begin a watch in time; see that it runs and can be reached")
)

// follower is what the goroutine of a reader knows.
type follower struct {
	*Reader
	store  store
	facts  map[string]*facts
	listed bool
	// anchor is the last write that was seen. A watch goes on after it: every deletion that came since is then seen once more, and deletes
	// nothing.
	anchor struct {
		key      string
		revision int64
	}
	// contact is when etcd was last heard of.
	contact time.Time
}

// run follows etcd until ctx ends.
func (r *Reader) run(ctx context.Context) {
	defer close(r.done)
	f := &follower{Reader: r}
	failures := 0
	for delay := time.Duration(0); backoff.Pause(ctx, delay); {
		progressed, err := attempt(ctx, f.dialer, func() (bool, error) { return f.follow(ctx) })
		if ctx.Err() != nil {
			return
		}
		failures++
		switch {
		case progressed && errors.Is(err, errHistory):
			failures, delay = 1, 0
		case progressed:
			failures, delay = 1, spread(retry.Min)
		default:
			delay = retry.After(failures)
		}
		r.lost(err)
	}
}

func (r *Reader) lost(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	message := explain(err).Error()
	if r.stats.Lists > 0 {
		message = "the fleet may have changed since: " + message
	}
	if r.health.lose(message) {
		r.config.Logger.Warn("fleet: " + message)
		r.feed.Publish("", step{health: new(r.health)})
	}
}

func (r *Reader) found() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.health.Current {
		r.config.Logger.Info("fleet: it is being followed")
		r.feed.Publish("", step{health: &Health{Current: true}})
	}
	r.health = Health{Current: true}
	select {
	case <-r.ready:
	default:
		close(r.ready)
	}
}

// follow lists if need be and watches until something goes wrong. Progressed says that it got as far as watching.
func (f *follower) follow(ctx context.Context) (progressed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() {
		if cause := context.Cause(ctx); cause != nil && err != nil {
			err = cause
		}
	}()
	if f.store, err = f.dialer.dial(ctx, f.config.Timeout); err != nil {
		return false, err
	}
	defer f.store.close()
	// The stream comes first. Etcd cannot be restored or replaced without ending it, so what is read after it is read from the etcd that is
	// watched.
	quiet := func() { cancel(errQuiet) }
	timer := time.AfterFunc(f.config.Timeout, quiet)
	stream, err := f.store.watch(ctx)
	timer.Stop()
	if err != nil {
		return false, err
	}
	from := f.anchor.revision + 1
	if f.listed {
		if err := f.verify(ctx); err != nil {
			f.listed = f.listed && !errors.Is(err, errHistory)
			return !f.listed, err
		}
	} else if from, err = f.list(ctx); err != nil {
		return false, err
	}
	if err := f.begin(stream, from, quiet); err != nil {
		return false, err
	}
	f.found()
	for {
		if err := f.receive(stream); err != nil {
			return true, err
		}
	}
}

// begin begins the watch at a revision.
func (f *follower) begin(stream watchStream, from int64, quiet func()) error {
	prefix := f.config.Space.nodes()
	response, err := ask(stream, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)), StartRevision: from,
		ProgressNotify: true, Fragment: true,
	}}}, f.config.Timeout, quiet)
	if err != nil {
		return err
	}
	if err := f.canceled(response); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Watches++
	return nil
}

// canceled returns the error of a watch that etcd has ended.
func (f *follower) canceled(response *pb.WatchResponse) error {
	switch {
	case response.GetCompactRevision() > 0:
		f.listed = false
		return errHistory
	case response.GetCanceled():
		return fmt.Errorf("etcd has ended the watch: %s", cmp.Or(valid(response.GetCancelReason()), "it did not say why"))
	}
	return nil
}

// verify says whether etcd has the history that is known: the last write that was seen has to be there, at its revision.
func (f *follower) verify(ctx context.Context) error {
	if f.anchor.key == "" {
		return errHistory // nothing to tell it by; there is nothing to read again either
	}
	response, err := f.store.get(ctx, f.anchor.key, clientv3.WithRev(f.anchor.revision), clientv3.WithKeysOnly())
	known := rpctypes.Error(err)
	switch {
	case errors.Is(known, rpctypes.ErrCompacted), errors.Is(known, rpctypes.ErrFutureRev),
		err == nil && (len(response.Kvs) != 1 || response.Kvs[0].ModRevision != f.anchor.revision):
		return errHistory
	}
	return err
}

// receive takes one message of the watch over. All changes of one revision become visible at once.
func (f *follower) receive(stream watchStream) error {
	var events []*mvccpb.Event
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := f.canceled(response); err != nil {
			return err
		}
		events = append(events, response.GetEvents()...)
		if !response.GetFragment() {
			break
		}
	}
	f.contact = time.Now()
	touched := map[string]bool{}
	for _, event := range events {
		name, key, ok := f.split(event.GetKv().GetKey())
		if !ok {
			continue
		}
		if event.GetType() == mvccpb.Event_DELETE {
			if known := f.facts[name]; known != nil {
				known.delete(key)
			}
		} else {
			f.put(name, key, event.GetKv())
		}
		touched[name] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Events += uint64(len(events))
	for name := range touched {
		f.show(name, f.contact, true)
	}
	return nil
}

// split takes a key of a node apart.
func (f *follower) split(key []byte) (name, rest string, ok bool) {
	below, ok := strings.CutPrefix(string(key), f.config.Space.nodes())
	if !ok {
		return "", "", false
	}
	name, rest, ok = strings.Cut(below, "/")
	return name, rest, ok && ValidateNode(name) == nil
}

// put takes a value over.
func (f *follower) put(name, key string, kv *mvccpb.KeyValue) {
	known := f.facts[name]
	if known == nil {
		known = &facts{}
	}
	if !known.put(key, kv) {
		return
	}
	f.facts[name] = known
	if kv.GetModRevision() >= f.anchor.revision {
		f.anchor.key, f.anchor.revision = string(kv.GetKey()), kv.GetModRevision()
	}
}

// show makes what is known of a node visible. The caller holds mu.
func (f *follower) show(name string, now time.Time, announce bool) {
	known := f.facts[name]
	if known == nil || known.empty() {
		delete(f.facts, name)
		f.publish(name, nil, announce)
		return
	}
	f.publish(name, known.member(name, f.members[name], now), announce)
}

// list reads everything, at one revision, and announces how it differs from what was known. A watch goes on at the revision next.
func (f *follower) list(ctx context.Context) (next int64, err error) {
	f.facts = map[string]*facts{}
	f.anchor.key, f.anchor.revision = "", 0
	revision, err := readPages(ctx, f.store, f.config.Space.nodes(), func(kv *mvccpb.KeyValue) {
		if name, key, ok := f.split(kv.Key); ok {
			f.put(name, key, kv)
		}
	})
	if err != nil {
		return 0, err
	}
	f.listed = true
	lastContact := f.contact
	f.contact = time.Now()
	if lastContact.IsZero() {
		lastContact = f.contact
	}
	f.mu.Lock()
	f.stats.Lists++
	announce := f.stats.Lists > 1
	for name := range f.members {
		if f.facts[name] == nil {
			f.show(name, lastContact, announce)
		}
	}
	for name := range f.facts {
		f.show(name, lastContact, announce)
	}
	f.mu.Unlock()
	if !announce {
		f.date(ctx)
	}
	return revision + 1, nil
}

// readPages reads what begins with a prefix, all at the revision that it returns.
func readPages(ctx context.Context, from store, prefix string, take func(*mvccpb.KeyValue)) (revision int64, err error) {
	key, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	limit := int64(pageSize)
	for more := true; more; {
		page, err := from.get(ctx, key, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(revision))
		if isTooLarge(err) && limit > 1 {
			limit /= 2
			continue
		}
		if errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
			return 0, errHistory
		}
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.GetRevision()
		}
		for _, kv := range page.Kvs {
			take(kv)
		}
		if more = page.More && len(page.Kvs) > 0; more {
			key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		}
	}
	return revision, nil
}

// date finds out when nodes that were dead before the reader came were last alive: a node renews its retention lease.
func (f *follower) date(ctx context.Context) {
	f.mu.RLock()
	dead := map[string]clientv3.LeaseID{}
	for name, m := range f.members {
		if m.node.State == NodeUnreachable && m.lease != 0 && len(dead) < maxDeadAsked {
			dead[name] = m.lease
		}
	}
	f.mu.RUnlock()
	for name, lease := range dead {
		ago, err := f.store.renewed(ctx, lease)
		switch {
		case isLeaseUnknown(err):
			continue // its retention has just ended
		case err != nil:
			return // it is not worth more
		}
		seen := time.Now().Add(-ago)
		f.mu.Lock()
		if m := f.members[name]; seen.After(m.node.LastSeen) {
			later := *m
			later.node.LastSeen = seen
			f.publish(name, &later, true)
		}
		f.mu.Unlock()
	}
}
