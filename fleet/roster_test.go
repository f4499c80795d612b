package fleet

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"
)

// contenderKey is a key with which a node competes for a lock.
func contenderKey(l Lock, lease, made int64, value string) *mvccpb.KeyValue {
	key, _ := contenderKeys(Space{}, fmt.Sprint("node", lease), l, clientv3.LeaseID(lease))
	return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), Lease: lease, CreateRevision: made, ModRevision: made}
}

// TestHolderIsRemembered: whoever holds a lock is found out once after each change, and is right.
func TestHolderIsRemembered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, l := standing{}, Lock{"T", "n"}
		now := map[string]contender{}
		for made := range int64(30) {
			lease := rapid.Int64Range(1, 5).Draw(t, "lease")
			value := rapid.SampledFrom([]string{contenderHolds + "5", contenderWaits + "5", ""}).Draw(t, "value")
			kv := contenderKey(l, lease, made+1, value)
			all.remove(l, string(kv.Key))
			delete(now, string(kv.Key))
			if c, ok := parseContender(Space{}, kv); value != "" && ok {
				all.put(Space{}, kv)
				now[string(kv.Key)] = c
			}
			var first contender
			for _, c := range now {
				if first.made == 0 || c.made < first.made {
					first = c
				}
			}
			for range 2 {
				holder, wanted := all.holder(l)
				if wanted != (len(now) > 0) || holder.holds != first.holds || first.holds && holder != first {
					t.Fatalf("%+v holds it, wanted: %t, among %v", holder, wanted, now)
				}
			}
			if contest := all[l]; contest != nil && contest.first == nil || contest == nil && len(now) > 0 {
				t.Fatal("the first is not remembered")
			}
		}
	})
}

// TestRosterForgets: of locks for which nobody competes any more, nothing is kept.
func TestRosterForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoster(Space{}, time.Second)
		r.reset(time.Now(), 1, nil)
		for i := range int64(10_000) {
			l := Lock{"T", fmt.Sprint(i)}
			put, gone := contenderKey(l, 1, i+1, contenderHolds+"5"), contenderKey(l, 1, i+1, "")
			left := contenderKey(Lock{"U", fmt.Sprint(i)}, 1, i+1, contenderHolds+"5")
			r.apply(i, []*clientv3.Event{{Type: mvccpb.PUT, Kv: put}, {Type: mvccpb.PUT, Kv: left}})
			left = &mvccpb.KeyValue{Key: left.Key, Value: []byte(contenderLeft), Lease: 1, CreateRevision: i + 1, ModRevision: i + 2}
			r.apply(i, []*clientv3.Event{{Type: mvccpb.DELETE, Kv: gone}, {Type: mvccpb.PUT, Kv: left}})
			time.Sleep(time.Second)
		}
		if len(r.contenders) > 0 || len(r.quiet) > 100 {
			t.Errorf("of %d and %d locks something is kept", len(r.contenders), len(r.quiet))
		}
	})
}
