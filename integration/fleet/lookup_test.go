package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	"github.com/patchbay-dev/patchbay/plugin"
)

// bytesIn counts what a client receives.
type bytesIn struct{ n atomic.Int64 }

func (b *bytesIn) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok {
		b.n.Add(int64(in.WireLength))
	}
}
func (*bytesIn) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*bytesIn) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*bytesIn) HandleConn(context.Context, stats.ConnStats)                       {}

// caller is a program that looks plugins up and calls them, without the call.
type caller struct {
	*fleet.Lookup
	t     testing.TB
	meter *meter
	bytes *bytesIn
}

// openLookup returns a lookup that opens a reader of the whole fleet when it first needs one.
func openLookup(t testing.TB, cluster *fleet.Cluster, log *slog.Logger) *fleet.Lookup {
	whole := fleet.Open(cluster, fleet.ReaderConfig{})
	t.Cleanup(whole.Close)
	l := fleet.OpenLookup(cluster, fleet.LookupConfig{Logger: log, Whole: whole})
	t.Cleanup(l.Close)
	return l
}

func newLookup(t testing.TB, etcd string) *caller {
	t.Helper()
	c := &caller{t: t, meter: &meter{counts: map[string]int{}}, bytes: &bytesIn{}}
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd}}, append(c.meter.options(), grpc.WithStatsHandler(c.bytes))...)
	if err != nil {
		t.Fatal(err)
	}
	c.Lookup = openLookup(t, cluster, nil)
	return c
}

// candidates returns the nodes to which a call may go, in the order in which they would be tried, by a dialer without certificates.
func (c *caller) candidates(name string, p nodecall.Policy) string {
	c.t.Helper()
	d := &nodecall.Dialer{Find: c.Find}
	defer d.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	_, err := d.Dial("CSIPlugin", name, p).NewStream(ctx, &grpc.StreamDesc{}, "/a.B/C")
	if p.Node != "" {
		if strings.Contains(err.Error(), "no node that can be called") {
			return ""
		}
		return p.Node
	}
	var nodes []string
	for part := range strings.SplitSeq(err.Error(), "node ") {
		if node, _, ok := strings.Cut(part, ": "); ok && !strings.Contains(node, " ") {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return strings.Join(nodes, " ")
}

// few finds a plugin as a dialer does before a call.
func (c *caller) few(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := c.Find(ctx, fleet.Filter{Types: []string{"CSIPlugin"}, Names: []string{name}, Few: 16})
	return err
}

// finds waits until a call may go to just these nodes.
func (c *caller) finds(name string, p nodecall.Policy, want string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		got := c.candidates(name, p)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("a call of %s may go to %q, not %q; %+v", name, got, want, c.Health())
		}
	}
}

// TestLookup: what is called is found, and followed, wherever it comes, moves and goes, over a restart of etcd and one of a node.
func TestLookup(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	cluster := connect(t, etcd.client)
	a, b := startNode(t, cluster, "a", "one", "two"), startNode(t, cluster, "b", "one")
	a.published(t)
	b.published(t)
	for _, kv := range indexed(t, etcd.admin(), 3).Kvs { // with the plugins, not after them: else a call may find nobody
		node := path.Base(string(kv.Key))
		said, err := etcd.admin().Get(t.Context(), keys.Space{}.NodeRange(node)+"record")
		if err != nil || len(said.Kvs) != 1 || said.Kvs[0].ModRevision != kv.ModRevision {
			t.Errorf("%s was written at %d, the plugins at %v, %v", kv.Key, kv.ModRevision, said, err)
		}
	}
	c := newLookup(t, etcd.client)
	anyNode := nodecall.Policy{}
	c.finds("one", anyNode, "a b")
	c.finds("two", anyNode, "a")
	c.finds("one", nodecall.Policy{Node: "b"}, "b")
	c.finds("none", anyNode, "")
	b.set("two", "none")
	c.finds("one", anyNode, "a")
	c.finds("one", nodecall.Policy{Node: "b"}, "")
	c.finds("two", anyNode, "a b")
	c.finds("none", anyNode, "b")
	a.stop()
	c.finds("two", anyNode, "b")
	c.finds("one", anyNode, "")
	etcd.restart()
	b.set("two")
	c.finds("none", anyNode, "")
	eventually(t, "the lookup has found etcd", func() bool { return c.Health().Current })
	startNode(t, cluster, "a", "one")
	c.finds("one", anyNode, "a")
	etcd.restore(etcd.save(), 0)
	b.set("three")
	c.finds("three", anyNode, "b")
}

// TestLookupWhileEtcdIsAway: what was called before is still found, and what was not is an error that says why.
func TestLookupWhileEtcdIsAway(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	startNode(t, connect(t, etcd.client), "a", "one").published(t)
	indexed(t, etcd.admin(), 1)
	c := newLookup(t, etcd.client)
	c.finds("one", nodecall.Policy{}, "a")
	etcd.stop()
	eventually(t, "the lookup knows", func() bool { return !c.Health().Current })
	if got := c.candidates("one", nodecall.Policy{}); got != "a" {
		t.Errorf("without etcd: %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := c.Find(ctx, fleet.Filter{Nodes: []string{"b"}})
	if err == nil || strings.Count(err.Error(), "etcd cannot be reached") != 1 {
		t.Errorf("what was not looked up before: %v", err)
	}
	etcd.start()
	eventually(t, "the lookup has found etcd", func() bool { return c.Health().Current })
}

// TestLookupCost: what a caller costs etcd, and itself, is the same in a fleet that is three times as large, and further calls cost nothing. The
// smaller fleet has more nodes than a caller knows the names of.
func TestLookupCost(t *testing.T) {
	t.Parallel()
	sizes := []int{70, 210}
	var requests [2]map[string]int
	var received [2]int64
	for i, size := range sizes {
		etcd := startOne(t)
		cluster := connect(t, etcd.client)
		var nodes []*node
		for n := range size {
			config := fleet.PublisherConfig{Node: fmt.Sprintf("node-%04d", n), Presence: 30 * time.Second} // not to be lost under load
			local := newLocal("one", "two", "three")
			if n == 3 { // which is called by its name, and not among those that any call may go to
				local = newLocal("one")
			}
			nodes = append(nodes, startNodeWith(t, cluster, config, local))
		}
		for _, n := range nodes {
			n.published(t)
		}
		indexed(t, etcd.admin(), int64(3*size-2))
		c := newLookup(t, etcd.client)
		ask := func(f func(ctx context.Context) error) {
			for range 20 {
				if err := f(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		ask(func(ctx context.Context) error {
			found, err := c.Find(ctx, fleet.Filter{Names: []string{"one"}, Nodes: []string{"node-0003"}})
			if len(found) != 1 {
				t.Errorf("%d are found on a node", len(found))
			}
			return err
		})
		ask(func(ctx context.Context) error { return c.few(ctx, "two") })
		ask(func(ctx context.Context) error {
			_, _, err := c.Holder(ctx, plugin.Name{Type: "CSIPlugin", Name: "two"})
			return err
		})
		eventually(t, fmt.Sprintf("the watches have begun: %+v", c.Stats()), func() bool {
			return c.Stats().Watches == 19 && uint64(c.meter.snapshot()["/etcdserverpb.Watch/Watch"]) == c.Stats().Watches
		})
		requests[i], received[i] = c.meter.snapshot(), c.bytes.n.Load()
	}
	t.Logf("%v, bytes %v", requests, received)
	for method, n := range requests[1] {
		if before := requests[0][method]; n > before {
			t.Errorf("%s: %d requests in a fleet of %d nodes, %d in one of %d", method, before, sizes[0], n, sizes[1])
		}
	}
	if received[1] > received[0]*12/10 {
		t.Errorf("bytes for %v nodes: %v", sizes, received)
	}
}

// indexed waits until the index has a number of keys.
func indexed(t *testing.T, admin *clientv3.Client, count int64) (found *clientv3.GetResponse) {
	t.Helper()
	eventually(t, fmt.Sprintf("the index has %d keys", count), func() (is bool) {
		do(t, "index", func(ctx context.Context) (err error) {
			found, err = admin.Get(ctx, indexRange(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
			return err
		})
		return found.Count == count
	})
	return found
}

// TestLookupAbsent: a plugin that no node has costs the first call two requests and those that follow none, and does not make anybody read the
// whole fleet, as a request for all instances does.
func TestLookupAbsent(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	cluster := connect(t, etcd.client)
	for _, name := range []string{"a", "b"} {
		startNode(t, cluster, name, "one").published(t)
	}
	indexed(t, etcd.admin(), 2)
	c := newLookup(t, etcd.client)
	for range 10 {
		c.finds("none", nodecall.Policy{}, "")
	}
	if got := c.meter.snapshot()["/etcdserverpb.KV/Range"]; got > 2 {
		t.Errorf("%d requests", got)
	}
	if all, err := c.Find(t.Context(), fleet.Filter{Types: []string{"CSIPlugin"}, Names: []string{"one"}}); err != nil || len(all) != 2 {
		t.Errorf("all instances: %v, %v", all, err)
	}
}

// TestLookupHolder: the holder of a lock is followed, without a request for a call, over every change and a restart of etcd.
func TestLookupHolder(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	c := newLookup(t, etcd.client)
	lock := plugin.Name{Type: "T", Name: "n"}
	holds := func(want string, exclusive bool) {
		t.Helper()
		eventually(t, "the holder is "+want, func() bool {
			node, is, err := c.Holder(t.Context(), lock)
			return err == nil && node == want && is == exclusive
		})
	}
	holds("", false)
	admin := etcd.admin()
	key := func(node string, lease clientv3.LeaseID) string {
		return keys.Contender{Lock: lock, Node: node, Lease: lease}.Key(keys.Space{})
	}
	grant := func() (lease clientv3.LeaseID) {
		do(t, "grant", func(ctx context.Context) error {
			granted, err := admin.Grant(ctx, 600)
			if err == nil {
				lease = granted.ID
			}
			return err
		})
		return lease
	}
	set := func(key, value string, lease clientv3.LeaseID) {
		t.Helper()
		do(t, "write", func(ctx context.Context) error {
			_, err := admin.Put(ctx, key, value, clientv3.WithLease(lease))
			return err
		})
	}
	remove := func(key string) {
		t.Helper()
		do(t, "remove", func(ctx context.Context) error { _, err := admin.Delete(ctx, key); return err })
	}
	first, second := grant(), grant()
	set(key("a", first), "waits 5", first)
	holds("", true)
	set(key("a", first), "holds 5 1", first)
	holds("a", true)
	set(key("b", second), "holds 5 2", second) // it came later, so it waits
	before := c.meter.snapshot()
	for range 100 {
		holds("a", true)
	}
	if after := c.meter.snapshot(); !maps.Equal(before, after) {
		t.Errorf("from %v to %v", before, after)
	}
	set(key("a", first), "left", first)
	holds("b", true)
	set(key("evil", 1), "holds 5 3", second) // under another lease than it says
	etcd.stop()
	holds("b", true)
	etcd.start()
	remove(key("b", second))
	holds("", false)
}

// TestLookupDenied: a node that may not write the index says so, and is published as soon as it may. A caller that may not read something
// learns why, and can still read the rest.
func TestLookupDenied(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	users(t, etcd.admin(), "node-a", "open sesame", "a")
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.client}, Username: "root", Password: "secret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	end := clientv3.GetPrefixRangeEnd(indexRange())
	do(t, "revoke", func(ctx context.Context) error {
		_, err := root.RoleRevokePermission(ctx, "node", indexRange(), end)
		return err
	})
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("open sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd.client}, User: "node-a", PasswordFile: file})
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, cluster, "a", "one")
	eventually(t, "a condition that says so", func() bool { return strings.Contains(n.Condition().Message, "etcd refuses its user") })
	c := &caller{t: t}
	c.Lookup = openLookup(t, cluster, nil)
	isRefused := func(what string, err error) {
		t.Helper()
		if err == nil || strings.Count(err.Error(), "etcd refuses its user") != 1 {
			t.Errorf("%s that may not be read: %v", what, err)
		}
	}
	isRefused("an index", c.few(t.Context(), "one"))
	do(t, "grant", func(ctx context.Context) error {
		_, err := root.RoleGrantPermission(ctx, "node", indexRange(), end, clientv3.PermissionType(clientv3.PermReadWrite))
		return err
	})
	n.published(t)
	c.finds("one", nodecall.Policy{}, "a")
	n.set("two")
	c.finds("two", nodecall.Policy{}, "a")
	if found, err := c.Find(t.Context(), fleet.Filter{Nodes: []string{"a"}}); err != nil || len(found) != 1 {
		t.Errorf("on the node: %v, %v", found, err)
	}
	_, _, err = c.Holder(t.Context(), plugin.Name{Type: "T", Name: "n"})
	isRefused("a lock", err)
	// On a busy machine etcd may have been silent for a moment.
	eventually(t, "nothing is wrong", func() bool { return n.Condition().OK && c.Health().Current })
}
