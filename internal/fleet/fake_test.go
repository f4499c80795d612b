package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/plugin"
)

// fake is an etcd that keeps keys and leases but evaluates no conditions: tests of etcd's own behavior use etcd. It is for tests that
// depend on time.
type fake struct {
	mu        sync.Mutex
	away      bool
	full      bool
	revision  int64
	leases    int64
	keys      map[string]*mvccpb.KeyValue
	dialed    []time.Time
	committed []time.Time // transactions that wrote
	renewals  int
}

func newFake() *fake { return &fake{keys: map[string]*mvccpb.KeyValue{}} }

var errAway = errors.New("away")

// clusterOf returns a cluster with one member, to which connect connects.
func clusterOf(connect interface {
	dial(ctx context.Context, timeout time.Duration) (store, error)
}, timeout time.Duration,
) *Cluster {
	return &Cluster{
		config: Etcd{Endpoints: []string{""}, Timeout: timeout},
		dial: func(ctx context.Context, _ int, timeout time.Duration) (store, error) {
			return connect.dial(ctx, timeout)
		},
	}
}

func (f *fake) dial(context.Context, time.Duration) (store, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialed = append(f.dialed, time.Now())
	if f.away {
		return nil, errAway
	}
	return f, nil
}

func (f *fake) close() {}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.committed)
}

func (f *fake) renewalsSoFar() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.renewals
}

func (f *fake) dials() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.dialed)
}

func (f *fake) value(key string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.keys[key].GetValue())
}

// get only counts keys.
func (f *fake) get(_ context.Context, key string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return nil, errAway
	}
	found := &clientv3.GetResponse{}
	for k := range f.keys {
		if strings.HasPrefix(k, key) {
			found.Count++
		}
	}
	return found, nil
}

func (f *fake) commit(_ context.Context, _ []clientv3.Cmp, then []clientv3.Op) (*clientv3.TxnResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	response := &pb.TxnResponse{Succeeded: true, Header: &pb.ResponseHeader{}}
	writes := false
	for _, op := range then {
		writes = writes || !op.IsGet()
	}
	switch {
	case f.away:
		return nil, errAway
	case writes && f.full:
		return nil, errors.New("full")
	case writes:
		f.revision++
		f.committed = append(f.committed, time.Now())
	}
	for _, op := range then {
		key, end := string(op.KeyBytes()), string(op.RangeBytes())
		within := func(k string) bool { return k == key || end != "" && k >= key && k < end }
		switch {
		case op.IsPut():
			f.keys[key] = &mvccpb.KeyValue{Key: []byte(key), Value: op.ValueBytes(), ModRevision: f.revision}
		case op.IsDelete():
			for k := range f.keys {
				if within(k) {
					delete(f.keys, k)
				}
			}
		default:
			found := &pb.RangeResponse{}
			for k, kv := range f.keys {
				if within(k) {
					found.Kvs = append(found.Kvs, kv)
				}
			}
			response.Responses = append(response.Responses,
				&pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: found}})
		}
	}
	response.Header.Revision = f.revision
	return (*clientv3.TxnResponse)(response), nil
}

func (f *fake) grant(context.Context, time.Duration) (clientv3.LeaseID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leases++
	return clientv3.LeaseID(f.leases), nil
}

func (f *fake) renewed(context.Context, clientv3.LeaseID) (time.Duration, error) { return 0, errAway }

func (f *fake) keepAlive(context.Context) (pb.Lease_LeaseKeepAliveClient, error) {
	return &fakeStream{fake: f}, nil
}

// watch returns a watch without events.
func (f *fake) watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	changes := make(chan clientv3.WatchResponse)
	context.AfterFunc(ctx, func() { close(changes) })
	return changes
}

func (f *fake) life() context.Context { return context.Background() }

type fakeStream struct {
	*fake
	pb.Lease_LeaseKeepAliveClient
}

func (s *fakeStream) Send(*pb.LeaseKeepAliveRequest) error { return nil }

func (s *fakeStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, errAway
	}
	s.renewals++
	return &pb.LeaseKeepAliveResponse{TTL: 10}, nil
}

// fakeLocal is a node that tests can change.
type fakeLocal struct {
	changes chan struct{}

	mu         sync.Mutex
	plugins    []plugin.Status
	conditions []plugin.Condition
}

func newFakeLocal(names ...string) *fakeLocal {
	l := &fakeLocal{changes: make(chan struct{}, 1)}
	l.set(names...)
	return l
}

func (l *fakeLocal) set(names ...string) {
	l.mu.Lock()
	l.plugins = nil
	for _, name := range names {
		ptype, name, _ := strings.Cut(name, "/")
		l.plugins = append(l.plugins, plugin.Status{Type: ptype, Name: name, State: plugin.StateRegistered})
	}
	l.mu.Unlock()
	select {
	case l.changes <- struct{}{}:
	default:
	}
}

func (l *fakeLocal) Plugins() []plugin.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.plugins
}

func (l *fakeLocal) Conditions() []plugin.Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conditions
}

func (l *fakeLocal) Changes(context.Context) <-chan struct{} { return l.changes }
