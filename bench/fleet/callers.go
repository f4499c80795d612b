package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// modelNodes is the size of the fleet for which the cost of a caller is extrapolated.
	modelNodes = 50_000
	// lockCalls is how many calls of a plugin with a lock are made.
	lockCalls = 100
	// lookups is how many callers with a lookup there are at once: the heap of one cannot be told from what the nodes do meanwhile.
	lookups = 100
)

// received counts the bytes of the answers of etcd.
type received struct{ bytes atomic.Int64 }

func (r *received) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok {
		r.bytes.Add(int64(in.WireLength))
	}
}
func (*received) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*received) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*received) HandleConn(context.Context, stats.ConnStats)                       {}

// price is what a caller costs.
type price struct {
	requests int
	received int64
	heap     int64
}

// measureCaller returns the price of what one of so many callers does with a cluster until stop is called.
func (m *measure) measureCaller(callers int, do func(c *fleet.Cluster) (stop func(), err error)) (p price, err error) {
	meter, in := newMeter(), &received{}
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{m.etcd.client}}, append(meter.options(), grpc.WithStatsHandler(in))...)
	if err != nil {
		return p, err
	}
	before := steadyHeap()
	for range callers {
		end, err := do(cluster)
		if err != nil {
			return p, err
		}
		defer end()
	}
	return price{meter.total() / callers, in.bytes.Load() / int64(callers), (int64(heap()) - int64(before)) / int64(callers)}, nil
}

// steadyHeap returns the heap when it no longer changes by more than a megabyte, or after a while: the nodes and closed readers use it too.
func steadyHeap() uint64 {
	now := heap()
	for range 20 {
		time.Sleep(time.Second) //nolint:forbidigo // the collector tells nobody when the heap is steady
		before := now
		if now = heap(); max(now, before)-min(now, before) < 1e6 {
			break
		}
	}
	return now
}

// callers prints what a node that calls costs, with a reader of the whole fleet, as earlier versions have it, and with a lookup.
func (m *measure) callers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lock := plugin.Name{Type: "CSIPlugin", Name: changing}
	name := m.nodes[len(m.nodes)/2].name
	lease, err := m.admin.Grant(ctx, int64(patience/time.Second))
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%s%v/%x", keys.Space{}.LockRange(name), lock, int64(lease.ID))
	if _, err := m.admin.Put(ctx, key, "holds 10 1", clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	defer func() { _, _ = m.admin.Revoke(ctx, lease.ID) }()
	onNode := fleet.Filter{Types: []string{lock.Type}, Names: []string{lock.Name}, Nodes: []string{name}}
	few := func(find finder) error {
		_, err := find(ctx, fleet.Filter{Types: []string{lock.Type}, Names: []string{lock.Name}, Few: 16})
		return err
	}
	find := func(find finder) error {
		found, err := find(ctx, onNode)
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("%d are found on a node", len(found))
		}
		return err
	}
	for _, w := range []struct {
		what string
		call func(find finder) error
	}{{"a call to a node that is named", find}, {"a call to any node", few}} {
		whole, err := m.measureCaller(1, func(c *fleet.Cluster) (func(), error) {
			r := fleet.Open(c, fleet.ReaderConfig{})
			return r.Close, w.call(r.Find)
		})
		if err != nil {
			return err
		}
		lookup, err := m.measureCaller(lookups, func(c *fleet.Cluster) (func(), error) {
			return lookUp(c, func(l *fleet.Lookup) error { return w.call(l.Find) })
		})
		if err != nil {
			return err
		}
		m.compare(w.what, whole, lookup)
	}
	return m.lockCallers(ctx, lock, name)
}

// lockCallers prints what a node that asks for the holder of a lock costs, with each question put to etcd and with a lookup.
func (m *measure) lockCallers(ctx context.Context, lock plugin.Name, name string) error {
	each, err := m.measureCaller(1, func(c *fleet.Cluster) (func(), error) {
		return func() {}, holders(ctx, lock, name, func(ctx context.Context, l plugin.Name) (string, bool, error) {
			states, err := c.Locks(ctx)
			for _, s := range states {
				if s.Lock == l {
					return s.Node, true, err
				}
			}
			return "", false, err
		})
	})
	if err != nil {
		return err
	}
	followed, err := m.measureCaller(lookups, func(c *fleet.Cluster) (func(), error) {
		return lookUp(c, func(l *fleet.Lookup) error { return holders(ctx, lock, name, l.Holder) })
	})
	m.compare(fmt.Sprintf("who holds a lock, for %d calls", lockCalls), each, followed)
	return err
}

// finder returns the instances that pass a filter and can be called.
type finder = func(ctx context.Context, f fleet.Filter) ([]fleet.Instance, error)

func lookUp(c *fleet.Cluster, do func(*fleet.Lookup) error) (end func(), err error) {
	whole := fleet.Open(c, fleet.ReaderConfig{})
	l := fleet.OpenLookup(c, fleet.LookupConfig{Whole: whole})
	return func() { l.Close(); whole.Close() }, do(l)
}

func holders(ctx context.Context, l plugin.Name, want string, holder func(context.Context, plugin.Name) (string, bool, error)) error {
	for range lockCalls {
		if node, _, err := holder(ctx, l); err != nil || node != want {
			return fmt.Errorf("the holder is %q: %w", node, err)
		}
	}
	return nil
}

// compare prints two prices, and what the model says of them for a large fleet: a reader's grow with the number of nodes, or with that
// of the calls, and a lookup's with neither.
func (m *measure) compare(what string, whole, lookup price) {
	m.row(what+", before", "%d requests, %d bytes, %.1f MB of heap", whole.requests, whole.received, float64(whole.heap)/1e6)
	m.row(what+", after", "%d requests, %d bytes, %.2f MB of heap", lookup.requests, lookup.received, float64(lookup.heap)/1e6)
	if whole.requests == lockCalls {
		return
	}
	factor := float64(modelNodes) / float64(m.sizes.nodes)
	m.row(fmt.Sprintf("extrapolated to %d nodes", modelNodes), "before %.0f requests, %.1f MB, %.0f MB of heap; after as above",
		float64(whole.requests-1)*factor+1, float64(whole.received)*factor/1e6, float64(whole.heap)*factor/1e6)
}
