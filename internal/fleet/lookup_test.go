package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

const few = 16 // the number of nodes that a call requests

// ranges is an etcd whose ranges are read. Its watches have no events.
type ranges struct {
	*fake
	t *testing.T

	mu    sync.Mutex
	keys  map[string]string
	reads map[string]int // of nodes
	// refuse returns the error of a read, if it is not nil; it may block.
	refuse func(ctx context.Context, key string, limit int64) error
}

func newRanges(t *testing.T) *ranges {
	return &ranges{fake: newFake(), t: t, keys: map[string]string{}, reads: map[string]int{}}
}

func (r *ranges) dial(context.Context, time.Duration) (store, error) { return r, nil }

func (r *ranges) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(key, options...)
	r.mu.Lock()
	refuse := r.refuse
	if node, ok := strings.CutPrefix(key, keys.Space{}.NodeSpace()); ok {
		r.reads[strings.TrimSuffix(node, "/")]++
	}
	r.mu.Unlock()
	if refuse != nil {
		if err := refuse(ctx, key, op.Limit()); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := &clientv3.GetResponse{Header: &pb.ResponseHeader{Revision: 1}}
	for k, value := range r.keys {
		if k >= key && k < string(op.RangeBytes()) {
			found.Kvs = append(found.Kvs, &mvccpb.KeyValue{Key: []byte(k), Value: []byte(value), ModRevision: 1})
		}
	}
	slices.SortFunc(found.Kvs, func(a, b *mvccpb.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
	if op.IsSortSet() {
		slices.Reverse(found.Kvs)
	}
	if limit := int(op.Limit()); limit > 0 && len(found.Kvs) > limit {
		found.Kvs, found.More = found.Kvs[:limit], true
	}
	return found, nil
}

// node adds a node with the plugin T/n.
func (r *ranges) node(name string, ready bool, labels map[string]string) {
	s := keys.Space{}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys[s.NodeRange(name)+keys.Record] = string(marshal(r.t, &fleetv1.NodeRecord{Address: "127.0.0.1:1", Labels: labels,
		Plugins: []*fleetv1.PluginRecord{{Type: "T", Name: "n", State: string(plugin.StateRegistered), Current: true}}}))
	if ready {
		r.keys[s.NodeRange(name)+keys.Presence] = ""
	}
	r.keys[s.IndexKey("n", name)] = ""
}

// nodesRead returns how many nodes were read.
func (r *ranges) nodesRead() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.reads)
}

func (r *ranges) refusing(refuse func(ctx context.Context, key string, limit int64) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}

func away(context.Context, string, int64) error { return errAway }

func hang(ctx context.Context, _ string, _ int64) error {
	<-ctx.Done()
	return ctx.Err()
}

// noWhole fails with errWhole instead of reading the whole fleet.
type noWhole struct{}

var errWhole = errors.New("the whole fleet is read")

func (noWhole) Find(context.Context, Filter) ([]Instance, error) { return nil, errWhole }

func (r *ranges) lookup() *Lookup {
	r.t.Helper()
	l := OpenLookup(clusterOf(r, 4*time.Second), LookupConfig{Whole: noWhole{}})
	r.t.Cleanup(l.Close)
	return l
}

// find returns the number of instances for a call of T/n.
func (r *ranges) find(l *Lookup, change func(*Filter)) (int, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 4*time.Second)
	defer cancel()
	f := Filter{Types: []string{"T"}, Names: []string{"n"}, Few: few}
	if change != nil {
		change(&f)
	}
	found, err := l.Find(ctx, f)
	return len(found), err
}

func (r *ranges) finds(l *Lookup, want int, change func(*Filter)) {
	r.t.Helper()
	if got, err := r.find(l, change); got != want || err != nil {
		r.t.Errorf("found %d, want %d: %v", got, want, err)
	}
}

// TestFindsWhatIsKnown checks that calls get the known instances while etcd is away, even if they request more.
func TestFindsWhatIsKnown(t *testing.T) {
	t.Run("a node of which nothing was read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRanges(t)
			for _, name := range []string{"a", "b", "c"} {
				r.node(name, true, nil)
			}
			l := r.lookup()
			r.finds(l, 3, nil)
			r.refusing(away)
			l.mu.Lock()
			for _, v := range l.views {
				if index, ok := v.source.(*indexView); ok {
					index.nodes = append([]string{"new"}, index.nodes...)
				}
			}
			l.mu.Unlock()
			r.finds(l, 3, nil)
			r.refusing(hang) // before the loss of etcd is noticed
			r.finds(l, 3, func(f *Filter) { f.Nodes = []string{"newer", "a", "b", "c"} })
		})
	})
	t.Run("more than is known", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRanges(t)
			for i := range 40 {
				r.node(fmt.Sprint(i), false, nil)
			}
			var read atomic.Int32
			r.refusing(func(_ context.Context, key string, _ int64) error {
				if strings.HasPrefix(key, keys.Space{}.NodeSpace()) && read.Add(1) > few {
					return errAway
				}
				return nil
			})
			r.finds(r.lookup(), few, nil)
		})
	})
	t.Run("for long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRanges(t)
			r.node("a", true, nil)
			l := r.lookup()
			r.finds(l, 1, nil)
			r.refusing(away)
			_, _ = r.find(l, func(f *Filter) { f.Nodes = []string{"b"} }) // after which the loss is known
			time.Sleep(2 * idleAfter)
			r.finds(l, 1, nil)
		})
	})
}

// TestFewAreLookedAt checks that a call reads only a few nodes itself, even if all nodes are unreachable or few have the labels.
func TestFewAreLookedAt(t *testing.T) {
	const most = 5 * few
	r := newRanges(t)
	for i := range 1000 {
		r.node(fmt.Sprint(i), false, map[string]string{"even": fmt.Sprint(i%2 == 0), "rare": fmt.Sprint(i == 7)})
	}
	l := r.lookup()
	if got, err := r.find(l, nil); got < few || err != nil {
		t.Errorf("found %d: %v", got, err)
	}
	if got, err := r.find(l, func(f *Filter) { f.Labels = map[string]string{"even": "true"} }); got == 0 || err != nil {
		t.Errorf("found %d with half of the labels: %v", got, err)
	}
	got, err := r.find(l, func(f *Filter) { f.Labels = map[string]string{"rare": "true"} })
	lucky := got == 1 && err == nil // it is among the few, by chance
	if read := r.nodesRead(); !errors.Is(err, errWhole) && !lucky || read > most {
		t.Errorf("found %d, %d nodes were read, %v", got, read, err)
	}
}

// TestManyViews checks that users who request many nodes do not affect the requests of others, and that waits for a dropped view end.
func TestManyViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRanges(t)
		r.node("a", true, nil)
		l := r.lookup()
		r.finds(l, 1, nil)
		r.refusing(hang)
		on := func(by uint32, node string) func(*Filter) {
			return func(f *Filter) { f.By, f.Nodes = by, []string{node} }
		}
		var calls sync.WaitGroup
		refused := make(chan error, maxViews)
		for i := range maxViews {
			calls.Go(func() {
				began := time.Now()
				if _, err := r.find(l, on(7, fmt.Sprint(i))); time.Since(began) == 0 {
					refused <- err
				}
			})
		}
		synctest.Wait()
		if len(refused) != maxViews-maxUnread {
			t.Errorf("%d of %d are refused", len(refused), maxViews)
		}
		calls.Go(func() {
			began := time.Now()
			if _, err := r.find(l, on(8, "z")); time.Since(began) == 0 || !errors.Is(err, errLetGo) {
				t.Errorf("another user: %v after %v", err, time.Since(began))
			}
		})
		time.Sleep(time.Second)
		l.mu.Lock()
		l.drop(l.views[viewKey{node: "z"}], errLetGo)
		l.mu.Unlock()
		calls.Wait()
		l.mu.Lock()
		if left := len(l.views); left > 2+readsAtOnce {
			t.Errorf("%d views are left", left)
		}
		l.mu.Unlock()
	})
}

// TestNodesThatAreNone checks that requests for nodes that do not exist do not drop the views that others use.
func TestNodesThatAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRanges(t)
		r.node("a", true, nil)
		l := r.lookup()
		if testing.Short() {
			l.most = 100
		}
		r.finds(l, 1, nil)
		for i := range l.most + 100 {
			r.finds(l, 0, func(f *Filter) { f.Nodes = []string{fmt.Sprint(i)} })
			time.Sleep(time.Millisecond) // so that the order of the requests is known
		}
		r.finds(l, 1, nil)
		if r.reads["a"] != 1 || len(l.views) > l.most {
			t.Errorf("it was read %d times, and %d views are kept", r.reads["a"], len(l.views))
		}
	})
}
