package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// history is an etcd that answers requests at any revision.
type history struct {
	*fake
	writes []*clientv3.Event // one of each revision, from 1 on
}

func (h *history) put(t *testing.T, key string, value *fleetv1.NodeRecord) {
	revision := int64(len(h.writes) + 1)
	h.writes = append(h.writes, &clientv3.Event{Kv: &mvccpb.KeyValue{
		Key: []byte(keys.Space{}.NodeSpace() + key), Value: marshal(t, value), ModRevision: revision,
	}})
}

func (h *history) delete(key string) {
	h.writes = append(h.writes, &clientv3.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{
		Key: []byte(keys.Space{}.NodeSpace() + key), ModRevision: int64(len(h.writes) + 1),
	}})
}

func (h *history) get(_ context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(key, options...)
	revision, last := op.Rev(), int64(len(h.writes))
	if revision > last {
		return nil, rpctypes.ErrFutureRev
	}
	if revision == 0 {
		revision = last
	}
	kept := map[string]*mvccpb.KeyValue{}
	for _, event := range h.writes[:revision] {
		k := string(event.Kv.Key)
		if delete(kept, k); event.Type == mvccpb.Event_PUT && (k == key || k >= key && k < string(op.RangeBytes())) {
			kept[k] = event.Kv
		}
	}
	found := &clientv3.GetResponse{Header: &pb.ResponseHeader{Revision: last}}
	for _, kv := range kept {
		found.Kvs = append(found.Kvs, kv)
	}
	return found, nil
}

// followTo applies the events of a history that a reader does not know yet, as a connection does.
func (h *history) followTo(t *testing.T, r *Reader) {
	t.Helper()
	r.use()
	got, err := r.all().read(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if got.install != nil {
		got.install(time.Now())
		return
	}
	r.all().apply(h.writes[got.revision:], time.Now())
}

// shown returns the state of a reader, without times.
func shown(r *Reader) (text string) {
	for _, n := range r.Nodes() {
		text += fmt.Sprintf("%s version %s drained %t; ", n.Name, n.GetVersion(), n.Cordon.Drained)
	}
	return text
}

// TestOtherHistory checks that a reader that connects to a restored etcd shows the keys of that etcd, regardless of its revision.
func TestOtherHistory(t *testing.T) {
	version := func(v string) *fleetv1.NodeRecord { return &fleetv1.NodeRecord{Version: v} }
	for _, test := range []struct {
		name            string
		before, instead func(t *testing.T, h *history) // the writes after the backup, and the writes after the restore
	}{
		{"another write of the same key at the same revision",
			func(t *testing.T, h *history) { h.put(t, "a/record", version("2")) },
			func(t *testing.T, h *history) { h.put(t, "a/record", version("3")) }},
		{"a removal that has not been", func(_ *testing.T, h *history) { h.delete("a/cordon") }, func(*testing.T, *history) {}},
		{"another write at the revision of a removal", func(_ *testing.T, h *history) { h.delete("a/cordon") },
			func(t *testing.T, h *history) { h.put(t, "b/record", version("1")) }},
		{"the same, and more", func(_ *testing.T, h *history) { h.delete("a/cordon") },
			func(_ *testing.T, h *history) { h.delete("b/record"); h.delete("b/record") }},
		{"the removal is known", func(_ *testing.T, h *history) { h.delete("a/cordon") },
			func(t *testing.T, h *history) { h.delete("a/cordon"); h.put(t, "b/record", version("1")) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := Open(clusterOf(&fake{away: true}, time.Second), ReaderConfig{})
			r.Close()
			h := &history{fake: newFake()}
			h.put(t, "a/cordon", &fleetv1.NodeRecord{})
			h.put(t, "b/record", version("1"))
			h.put(t, "a/record", version("1"))
			h.followTo(t, r)
			backup := len(h.writes)
			test.before(t, h)
			h.followTo(t, r)
			h.writes = h.writes[:backup]
			test.instead(t, h)
			h.followTo(t, r)
			fresh := Open(clusterOf(&fake{away: true}, time.Second), ReaderConfig{})
			fresh.Close()
			h.followTo(t, fresh)
			if got, want := shown(r), shown(fresh); got != want {
				t.Errorf("it shows %s, and etcd has %s", got, want)
			}
		})
	}
}

// TestLastSeenAfterLoss checks that a reader that did not follow etcd when the presence of a node ended has the two times between which the
// node was last alive.
func TestLastSeenAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Open(clusterOf(&fake{away: true}, time.Second), ReaderConfig{})
		r.Close()
		h := &history{fake: newFake()}
		regain := func() {
			r.use()
			r.mu.Lock()
			r.regained("found")
			r.mu.Unlock()
			h.followTo(t, r)
		}
		record := func() *fleetv1.NodeRecord {
			return &fleetv1.NodeRecord{WrittenAt: timestamp(time.Now()), Plugins: []*fleetv1.PluginRecord{{Type: "T", Name: "n"}}}
		}
		began := time.Now()
		for _, node := range []string{"during", "later", "wrote"} {
			h.put(t, node+"/presence", &fleetv1.NodeRecord{})
			h.put(t, node+"/record", record())
		}
		regain()
		time.Sleep(time.Hour)
		h.put(t, "wrote/record", record())
		wrote := time.Now()
		h.followTo(t, r)
		time.Sleep(time.Second)
		r.lost(errAway)
		lost := time.Now()
		time.Sleep(time.Hour)
		h.delete("during/presence")
		h.delete("wrote/presence")
		regain()
		ended := time.Now()
		time.Sleep(time.Minute)
		h.delete("later/presence")
		h.followTo(t, r)
		last := ended.Add(-DefaultPresence)
		want := map[string][2]time.Time{
			"during": {lost.Add(-DefaultPresence - pingAfter - pingTimeout), last}, "wrote": {wrote, last},
			"later": {ended.Add(time.Minute - DefaultPresence), {}},
		}
		for _, n := range r.Nodes() {
			if w := want[n.Name]; !n.LastSeen.Equal(w[0]) || !n.SeenBefore.Equal(w[1]) {
				t.Errorf("node %s was last seen from %v to %v, want %v to %v", n.Name, n.LastSeen.Sub(began), n.SeenBefore.Sub(began),
					w[0].Sub(began), w[1].Sub(began))
			}
		}
	})
}

// TestCordonOutlivesTheNode checks that a drained node that returns after its retention is still drained.
func TestCordonOutlivesTheNode(t *testing.T) {
	r := Open(clusterOf(&fake{away: true}, time.Second), ReaderConfig{})
	r.Close()
	h := &history{fake: newFake()}
	h.put(t, "a/record", &fleetv1.NodeRecord{})
	h.put(t, "a/cordon", &fleetv1.NodeRecord{})
	h.followTo(t, r)
	h.delete("a/record")
	h.followTo(t, r)
	if nodes := r.Nodes(); len(nodes) != 0 {
		t.Errorf("a node without a record: %+v", nodes)
	}
	h.put(t, "a/record", &fleetv1.NodeRecord{})
	h.followTo(t, r)
	if nodes := r.Nodes(); len(nodes) != 1 || !nodes[0].Cordon.Drained {
		t.Errorf("%+v", nodes)
	}
}

// TestNothingToFollow checks that a lookup without requests is current, regardless of the result of the last request.
func TestNothingToFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRanges(t)
		r.refusing(away)
		l := r.lookup()
		if _, err := r.find(l, nil); err == nil || l.Health().Current {
			t.Errorf("%v, %+v", err, l.Health())
		}
		time.Sleep(2 * Retry.Max)
		if h := l.Health(); !h.Current || h.Message != "" {
			t.Errorf("%+v", h)
		}
	})
}

// TestManyKeysOfANode checks that looking up a node that fills its range with keys takes one request.
func TestManyKeysOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRanges(t)
		r.node("a", true, nil)
		for i := range 10 * pageSize {
			r.keys[fmt.Sprintf("%sz%d", keys.Space{}.NodeRange("a"), i)] = ""
		}
		requests := 0
		r.refusing(func(_ context.Context, key string, _ int64) error {
			if strings.HasPrefix(key, keys.Space{}.NodeSpace()) {
				requests++
			}
			return nil
		})
		l := r.lookup()
		r.finds(l, 1, func(f *Filter) { f.Nodes = []string{"a"} })
		if requests != 1 {
			t.Errorf("%d requests", requests)
		}
	})
}
