package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestLife: what a node has is seen, what changes is seen, and after it has stopped it is still seen, as stopped.
func TestLife(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	client := connect(t, etcd.client)
	r := openReader(t, client)
	f := follow(t, r)
	n := startNodeWith(t, client, fleet.PublisherConfig{Node: "a", Address: "10.0.0.1:7777"}, newLocal("one", "two"))
	shows(t, r, "a/one=registered", "a/two=registered")
	if got := r.Nodes()[0]; got.State != fleet.NodeReady || got.GetVersion() != "v1.2.3" || got.GetInstance() != n.Instance() || !got.LastSeen.IsZero() {
		t.Errorf("the node is %+v", got)
	}
	n.set("two", "three")
	shows(t, r, "a/two=registered", "a/three=registered")
	if got, err := r.Find(t.Context(), fleet.Filter{Names: []string{"two"}}); err != nil || len(got) != 1 || got[0].Node.GetAddress() != "10.0.0.1:7777" {
		t.Errorf("instances: %+v, %v", got, err)
	}
	n.stop()
	shows(t, r, "a/two=unreachable", "a/three=unreachable")
	if got := r.Nodes()[0]; got.State != fleet.NodeStopped || got.LastSeen.IsZero() {
		t.Errorf("the node is %+v", got)
	}
	if got, err := r.Find(t.Context(), fleet.Filter{}); err != nil || len(got) != 0 {
		t.Errorf("instances of a stopped node: %+v, %v", got, err)
	}
	startNode(t, client, "a", "three")
	shows(t, r, "a/three=registered")
	f.agrees(r)

	// A reader that comes now sees the same.
	shows(t, openReader(t, client), "a/three=registered")
}

// TestDeath: a node that is cut off reads unreachable when its presence ends, and again ready when it is back. What it has changed
// meanwhile arrives.
func TestDeath(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	cut := newProxy(t, etcd.client)
	client := connect(t, etcd.client)
	r := openReader(t, client)
	f := follow(t, r)
	n := startNode(t, connect(t, cut.url), "a", "one")
	startNode(t, client, "b", "one")
	shows(t, r, "a/one=registered", "b/one=registered")
	cut.sever()
	began := time.Now()
	shows(t, r, "a/one=unreachable", "b/one=registered")
	t.Logf("a dead node is seen as such after %v with a presence of %v", time.Since(began).Round(time.Millisecond), presence)
	if state := stateOf(r, "a"); state != fleet.NodeUnreachable {
		t.Errorf("the node is %s", state)
	}
	shows(t, openReader(t, client), "a/one=unreachable", "b/one=registered")
	n.set("one", "two")
	eventually(t, "a condition that says so", func() bool { return !n.Condition().OK })
	cut.mend()
	shows(t, r, "a/one=registered", "a/two=registered", "b/one=registered")
	n.published(t)
	f.agrees(r)
}

// TestRetention: what a dead node had is gone when its retention is over.
func TestRetention(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	cut := newProxy(t, etcd.client)
	r := openReader(t, connect(t, etcd.client))
	f := follow(t, r)
	startNodeWith(t, connect(t, cut.url), fleet.PublisherConfig{Node: "a", Retention: 5 * time.Second}, newLocal("one"))
	shows(t, r, "a/one=registered")
	time.Sleep(6 * time.Second) // it is renewed
	shows(t, r, "a/one=registered")
	cut.sever()
	shows(t, r, "a/one=unreachable")
	shows(t, r)
	eventually(t, "the node is gone", func() bool { return len(r.Nodes()) == 0 })
	f.agrees(r)
	cut.mend()
	shows(t, r, "a/one=registered")
	f.agrees(r)
}

// TestEtcdAway: a node starts without etcd, is published when it comes, and again when it was away.
func TestEtcdAway(t *testing.T) {
	t.Parallel()
	etcd := newMember(t, nil)
	n := startNode(t, connect(t, etcd.client), "a", "one")
	eventually(t, "a condition that says so", func() bool { return strings.Contains(n.Condition().Message, "etcd cannot be reached") })
	etcd.start()
	r := openReader(t, connect(t, etcd.client))
	f := follow(t, r)
	shows(t, r, "a/one=registered")
	n.published(t)
	etcd.stop()
	n.set("two")
	eventually(t, "conditions that say so", func() bool { return !n.Condition().OK && !r.Health().Current })
	etcd.start()
	shows(t, r, "a/two=registered")
	n.published(t)
	eventually(t, "the reader is current", func() bool { return r.Health().Current })
	f.agrees(r)
}

// revokeLeaseOf revokes the lease of a key of a node. It returns false if the key or the lease is gone: on a busy machine a short lease
// expires by itself before it can be revoked, and the node writes the key again, under a new lease.
func revokeLeaseOf(t testing.TB, admin *clientv3.Client, node, key string) (revoked bool) {
	t.Helper()
	do(t, "revoke the lease of "+key, func(ctx context.Context) error {
		got, err := admin.Get(ctx, keys.Space{}.NodeRange(node)+key)
		if err != nil || len(got.Kvs) == 0 {
			return err
		}
		_, err = admin.Revoke(ctx, clientv3.LeaseID(got.Kvs[0].Lease))
		revoked = err == nil
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
	return revoked
}

// TestLeaseRevoked: leases that are gone are replaced, and everything is published anew.
func TestLeaseRevoked(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	client, admin := connect(t, etcd.client), etcd.admin()
	r := openReader(t, client)
	f := follow(t, r)
	n := startNode(t, client, "a", "one")
	shows(t, r, "a/one=registered")
	for _, key := range []string{"presence", "record"} {
		before := n.Stats().Sessions
		eventually(t, "the lease of "+key+" is revoked", func() bool { return revokeLeaseOf(t, admin, "a", key) })
		if key == "record" {
			n.set("two") // only a write, or the renewal after a third of the retention, tells
		}
		eventually(t, "another session", func() bool { return n.Stats().Sessions > before })
		n.published(t)
	}
	shows(t, r, "a/two=registered")
	f.agrees(r)
}

// TestOneName: of two daemons with one name the first is published, the other says so, and takes over when the first ends.
func TestOneName(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	client := connect(t, etcd.client)
	r := openReader(t, client)
	first := startNode(t, client, "a", "one")
	shows(t, r, "a/one=registered")
	first.published(t)
	writes := first.Stats().Writes
	second := startNode(t, client, "a", "two")
	eventually(t, "a condition that says so", func() bool {
		return strings.Contains(second.Condition().Message, "another daemon holds the name of the node") &&
			strings.Contains(second.Condition().Message, first.Instance())
	})
	time.Sleep(3 * presence)
	shows(t, r, "a/one=registered")
	if got := first.Stats(); got.Writes != writes || got.Sessions != 1 || !first.Condition().OK {
		t.Errorf("the first was disturbed: %+v, %+v", got, first.Condition())
	}
	first.stop()
	shows(t, r, "a/two=registered")
	second.published(t)
}

// TestManyPlugins: thousands of plugins arrive at once, grow and shrink.
func TestManyPlugins(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	client := connect(t, etcd.client)
	r := openReader(t, client)
	f := follow(t, r)
	// With a longer presence, requests may take longer.
	n := startNodeWith(t, client, fleet.PublisherConfig{Node: "a", Presence: 30 * time.Second}, newLocal())
	for i, count := range []int{1, 4000, 4001, 700, 0, 3} {
		version := fmt.Sprint(i)
		all := make([]plugin.Status, count)
		for i := range all {
			all[i] = status(fmt.Sprintf("plugin-%04d", i))
			all[i].Version = version
			all[i].Registration.Details = map[string]string{"text": strings.Repeat("x", 100)}
		}
		n.setAll(all)
		eventually(t, fmt.Sprintf("%d plugins", count), func() bool {
			return len(r.Plugins(fleet.Filter{Versions: []string{version}})) == count && len(r.Plugins(fleet.Filter{})) == count
		})
		if got := len(openReader(t, client).Plugins(fleet.Filter{})); got != count {
			t.Errorf("a new reader has %d of %d plugins", got, count)
		}
	}
	f.agrees(r)
}

// TestStrangers: keys that are no node's, and values that cannot be read, disturb nobody.
func TestStrangers(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	client, admin := connect(t, etcd.client), etcd.admin()
	r := openReader(t, client)
	startNode(t, client, "a", "one")
	shows(t, r, "a/one=registered")
	nodes := keys.Space{}.Base() + "nodes/"
	for key, value := range map[string]string{
		"": "x", "b": "x", "b/": "x", "b/other": "x", "c d/record": "x", "e/plugins/0/0000": "x",
		"g/record": "\xff\xff", "h/record": "", "i/cordon": "\xff\xff",
		"a/record2": "x",
	} {
		do(t, "put", func(ctx context.Context) error { _, err := admin.Put(ctx, nodes+key, value); return err })
	}
	eventually(t, "the node without a record", func() bool { return stateOf(r, "g") == fleet.NodeUnknown })
	shows(t, r, "a/one=registered")
	fresh := openReader(t, client)
	shows(t, fresh, "a/one=registered")
	// The old reader receives one key after the other, and that of g perhaps before the others.
	eventually(t, "the old reader has the nodes of the new one", func() bool { return len(r.Nodes()) == len(fresh.Nodes()) })
}
