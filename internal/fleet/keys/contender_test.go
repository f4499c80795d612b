package keys

import (
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/plugin"
)

func TestContender(t *testing.T) {
	s := Space{}
	kv := func(key, value string, lease int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), Lease: lease, CreateRevision: 3, ModRevision: 5}
	}
	for _, l := range []plugin.Name{{Type: "csi-controller", Name: "hostpath.csi.k8s.io"}, {Type: "T", Name: "example.com/widget"}, {Type: "T", Name: "a%2Fb c"}, {Type: "@node", Name: "x"}} {
		for _, token := range []int64{0, 139} {
			want := Contender{Lock: l, Node: "a", Token: token, TTL: 10 * time.Second, Lease: 0x694d, Created: 3}
			if got, ok := ParseContender(s, kv(want.Key(s), want.Value(), 0x694d)); !ok || got != want {
				t.Errorf("%s: %+v, %t", want.Key(s), got, ok)
			}
		}
	}
	own := Contender{Lock: plugin.Name{Type: "T", Name: "x"}, Node: "a", Lease: 1}.Key(s)
	if c, ok := ParseContender(s, kv(own, "waits 99999999999999", 1)); !ok || c.TTL != MaxLockTTL {
		t.Errorf("a lease that is too long: %+v, %t", c, ok)
	}
	for name, kv := range map[string]*mvccpb.KeyValue{
		"empty": kv("", "", 1), "left": kv(own, "left", 1), "without lease": kv(own, "waits 10", 0), "of another lease": kv(own, "waits 10", 2),
		"negative": kv(own, "waits -1", 1), "no number": kv(own, "waits", 1), "without token": kv(own, "holds 10", 1),
		"negative token": kv(own, "holds 10 -5", 1), "strange": kv(own, "x", 1), "base": kv(s.TokenBaseKey("1"), "5", 1),
		"short": kv(s.LockRange("a")+"T/1", "waits 10", 1), "escape": kv(s.LockRange("a")+"T/%zz/1", "waits 10", 1),
		"elsewhere": kv(Space{Namespace: "x"}.LockRange("a")+"T/x/1", "waits 10", 1), "long": kv(own+"/1", "waits 10", 1),
		"no node": kv(s.LockRange("a b")+"T/x/1", "waits 10", 1),
	} {
		if c, ok := ParseContender(s, kv); ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestFirstIsRemembered: the first contender is found once after each change, and is right.
func TestFirstIsRemembered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, l := Contenders{}, plugin.Name{Type: "T", Name: "n"}
		now := map[string]Contender{}
		for created := range int64(30) {
			c := Contender{Lock: l, Node: "a", TTL: time.Second, Lease: clientv3.LeaseID(rapid.Int64Range(1, 5).Draw(t, "lease")), Created: created + 1}
			c.Token = rapid.SampledFrom([]int64{0, 5}).Draw(t, "token")
			kv := &mvccpb.KeyValue{Key: []byte(c.Key(Space{})), Lease: int64(c.Lease), CreateRevision: c.Created}
			if before, _ := all.Put(Space{}, kv); before != now[c.Key(Space{})] {
				t.Fatalf("before: %+v", before)
			}
			delete(now, c.Key(Space{}))
			if rapid.Bool().Draw(t, "stays") {
				kv.Value = []byte(c.Value())
				all.Put(Space{}, kv)
				now[c.Key(Space{})] = c
			}
			var first Contender
			for _, c := range now {
				if first.Created == 0 || c.Created < first.Created {
					first = c
				}
			}
			for range 2 {
				if got := all.First(l); got != first {
					t.Fatalf("%+v is the first among %v", got, now)
				}
				node, wanted := all.Holder(l)
				if wanted != (len(now) > 0) || (node != "") != (first.Token > 0) {
					t.Fatalf("%q holds it, wanted: %t, among %v", node, wanted, now)
				}
			}
			if contest := all.contests[l]; contest != nil && contest.first == nil || contest == nil && len(now) > 0 {
				t.Fatal("the first is not remembered")
			}
		}
	})
}

// TestManyLockKeys: a node that writes more keys of locks than it may is not known with all of them, and loses none that it has.
func TestManyLockKeys(t *testing.T) {
	all, s := Contenders{}, Space{}
	kv := func(node string, i int, value string) *mvccpb.KeyValue {
		c := Contender{Lock: plugin.Name{Type: "T", Name: fmt.Sprint(i)}, Node: node, Lease: 1}
		return &mvccpb.KeyValue{Key: []byte(c.Key(s)), Value: []byte(value), Lease: 1, CreateRevision: 1}
	}
	for i := range 2 * maxLockKeys {
		all.Put(s, kv("a", i, "waits 10"))
	}
	if n := len(all.States()); n != maxLockKeys {
		t.Errorf("%d locks", n)
	}
	all.Put(s, kv("b", 0, "waits 10"))
	all.Put(s, kv("a", 0, "holds 10 5")) // known, so it changes
	if state := all.States()[0]; state.Lock.Name != "0" || len(state.Nodes) != 2 {
		t.Errorf("%v", state)
	}
	for i := range 2 * maxLockKeys {
		all.Put(s, kv("a", i, "left"))
	}
	all.Put(s, kv("b", 0, ""))
	if len(all.contests)+len(all.keys) > 0 {
		t.Errorf("of %d locks and %d nodes something is kept", len(all.contests), len(all.keys))
	}
}
