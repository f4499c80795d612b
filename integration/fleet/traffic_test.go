package fleet_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// meter counts the messages that clients send, by method.
type meter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (m *meter) add(method string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[method]++
}

func (m *meter) snapshot() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.counts)
}

func (m *meter) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			m.add(method)
			return invoke(ctx, method, req, reply, conn, options...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
			begin grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			m.add(method + " opened")
			stream, err := begin(ctx, desc, conn, method, options...)
			return &metered{stream, m, method}, err
		}),
	}
}

type metered struct {
	grpc.ClientStream
	meter  *meter
	method string
}

func (s *metered) SendMsg(message any) error {
	s.meter.add(s.method)
	return s.ClientStream.SendMsg(message)
}

const keepAliveMethod = "/etcdserverpb.Lease/LeaseKeepAlive"

// spending is what a node asked of etcd: when it had started, and after a rest of four times its presence; and the renewals meanwhile.
type spending struct {
	start, end map[string]int
	renewals   int
}

// atRest starts a node and lets it rest, for which a change without news is none.
func atRest(t *testing.T, etcd *member) (*node, spending) {
	t.Helper()
	m := &meter{counts: map[string]int{}}
	client, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd.client}}, m.options()...)
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, client, "a", "one", "two")
	n.published(t)
	time.Sleep(presence / 4) // the first look at changes
	spent := spending{start: m.snapshot()}
	n.set("one", "two")
	time.Sleep(4 * presence)
	spent.end = m.snapshot()
	spent.renewals = spent.end[keepAliveMethod] - spent.start[keepAliveMethod]
	delete(spent.start, keepAliveMethod)
	delete(spent.end, keepAliveMethod)
	return n, spent
}

// TestTraffic: a node at rest renews its presence and does nothing else, and a start costs a handful of requests.
func TestTraffic(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	n, spent := atRest(t, etcd)
	for n.Stats().Sessions != 1 || n.Stats().Failures > 0 {
		t.Logf("the machine was too busy: the node lost its presence, which costs more: %+v, %+v", n.Stats(), spent)
		n.stop()
		n, spent = atRest(t, etcd)
	}
	t.Logf("with a presence of %v: %+v", presence, spent)
	want := map[string]int{
		keepAliveMethod + " opened": 1, "/etcdserverpb.Lease/LeaseGrant": 2,
		"/etcdserverpb.KV/Txn": 2, // the look; the node and its index
	}
	if !maps.Equal(spent.start, want) {
		t.Errorf("a start costs %v, want %v", spent.start, want)
	}
	if !maps.Equal(spent.start, spent.end) {
		t.Errorf("a node at rest made other requests than renewals: from %v to %v", spent.start, spent.end)
	}
	if spent.renewals < 4 || spent.renewals > 18 {
		t.Errorf("%d renewals", spent.renewals)
	}
	// Many changes at once are few writes.
	writes := n.Stats().Writes
	for i := range 200 {
		n.set(fmt.Sprint(i))
	}
	r := openReader(t, connect(t, etcd.client))
	shows(t, r, "a/199=registered")
	if got := n.Stats().Writes - writes; got > 5 {
		t.Errorf("200 changes at once were %d writes", got)
	}
}

// TestReaderTraffic: a hundred subscribers cost etcd one list and one watch.
func TestReaderTraffic(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	m := &meter{counts: map[string]int{}}
	client, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd.client}}, m.options()...)
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, connect(t, etcd.client), "a", "one")
	r := openReader(t, client)
	var followers []*follower
	for range 100 {
		followers = append(followers, follow(t, r))
	}
	n.published(t)
	n.set("two")
	shows(t, r, "a/two=registered")
	for _, f := range followers {
		f.agrees(r)
	}
	want := map[string]int{"/etcdserverpb.KV/Range": 1, "/etcdserverpb.Watch/Watch opened": 1, "/etcdserverpb.Watch/Watch": 1}
	if got := m.snapshot(); !maps.Equal(got, want) {
		t.Errorf("the reader made %v, want %v", got, want)
	}
}
