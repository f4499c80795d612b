package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// TestCompaction: a reader that was away while the history that it needs was compacted announces the difference, and nothing twice.
func TestCompaction(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	client, admin := connect(t, etcd.client), etcd.admin()
	cut := newProxy(t, etcd.client)
	r := openReader(t, connect(t, cut.url))
	f := follow(t, r)
	a, b := startNode(t, client, "a", "one", "two"), startNode(t, client, "b", "one")
	shows(t, r, "a/one=registered", "a/two=registered", "b/one=registered")
	f.agrees(r)
	lists := r.Stats().Lists
	cut.sever()
	b.stop()
	startNode(t, client, "c", "one")
	fresh := openReader(t, client)
	for i := range 30 {
		a.set("two", fmt.Sprint(i))
		shows(t, fresh, "a/two=registered", fmt.Sprintf("a/%d=registered", i), "b/one=unreachable", "c/one=registered")
	}
	do(t, "compact", func(ctx context.Context) error {
		got, err := admin.Get(ctx, "any")
		if err == nil {
			_, err = admin.Compact(ctx, got.Header.Revision, clientv3.WithCompactPhysical())
		}
		return err
	})
	cut.reset()
	cut.mend()
	shows(t, r, "a/two=registered", "a/29=registered", "b/one=unreachable", "c/one=registered")
	f.agrees(r)
	if got := r.Stats().Lists; got != lists+1 {
		t.Errorf("it listed %d times after the compaction", got-lists)
	}
	a.set("last")
	shows(t, r, "a/last=registered", "b/one=unreachable", "c/one=registered")
	f.agrees(r)
}

// TestReconnect: a reader whose connection breaks goes on where it was, without a list, also if the last that it saw was a removal.
func TestReconnect(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	client, admin := connect(t, etcd.client), etcd.admin()
	cut := newProxy(t, etcd.client)
	r := openReader(t, connect(t, cut.url))
	f := follow(t, r)
	a, b := startNode(t, client, "a", "one"), startNode(t, client, "b", "one")
	shows(t, r, "a/one=registered", "b/one=registered")
	do(t, "remove", func(ctx context.Context) error {
		_, err := admin.Delete(ctx, keys.Space{}.NodeRange("b")+"record")
		return err
	})
	shows(t, r, "a/one=registered")
	for i := range 3 {
		watches := r.Stats().Watches
		cut.reset()
		eventually(t, "another watch", func() bool { return r.Stats().Watches > watches && r.Health().Current })
		name := fmt.Sprint(i)
		a.set(name)
		shows(t, r, "a/"+name+"=registered")
	}
	if got := r.Stats().Lists; got != 1 {
		t.Errorf("it listed %d times", got)
	}
	b.set("two")
	shows(t, r, "a/2=registered", "b/two=registered")
	f.agrees(r)
}

// TestRestore: after etcd was restored from a backup, nodes publish anew what the backup does not have, and readers announce the
// difference, whether its revision shows it or not.
func TestRestore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bump  uint64
		ahead int
	}{"Back": {}, "Bumped": {bump: 1_000_000}, "Ahead": {ahead: 500}} {
		t.Run(name, func(t *testing.T) {
			etcd := startOne(t)
			client := connect(t, etcd.client)
			r := openReader(t, client)
			f := follow(t, r)
			a, b := startNode(t, client, "a", "one"), startNode(t, client, "b", "one")
			// Nobody publishes what a dead node had again: only whoever looks sees that it is there once more.
			admin := etcd.admin()
			bury(t, admin, "d", "ghost")
			shows(t, r, "a/one=registered", "b/one=registered", "d/ghost=unreachable")
			backup := etcd.save()
			do(t, "remove", func(ctx context.Context) error {
				_, err := admin.Delete(ctx, keys.Space{}.NodeRange("d"), clientv3.WithPrefix())
				return err
			})
			a.set("one", "two")
			b.set()
			startNode(t, client, "c", "one")
			shows(t, r, "a/one=registered", "a/two=registered", "c/one=registered")
			if c.ahead == 0 {
				etcd.restore(backup, c.bump)
			} else {
				// The restored one has had more writes than the old one before anybody comes back.
				address := etcd.client
				etcd.client = freeURL(t, "http")
				etcd.restore(backup, 0)
				admin := etcd.admin()
				for i := range c.ahead {
					do(t, "put", func(ctx context.Context) error { _, err := admin.Put(ctx, "other", fmt.Sprint(i)); return err })
				}
				etcd.client = address
				etcd.restart()
			}
			shows(t, r, "a/one=registered", "a/two=registered", "c/one=registered", "d/ghost=unreachable")
			for _, n := range []*node{a, b} {
				n.published(t)
			}
			eventually(t, "the reader is current", func() bool { return r.Health().Current })
			shows(t, r, "a/one=registered", "a/two=registered", "c/one=registered", "d/ghost=unreachable")
			shows(t, openReader(t, client), "a/one=registered", "a/two=registered", "c/one=registered", "d/ghost=unreachable")
			b.set("late")
			shows(t, r, "a/one=registered", "a/two=registered", "b/late=registered", "c/one=registered", "d/ghost=unreachable")
			f.agrees(r)
		})
	}
}

// TestAnotherCluster: an empty cluster at the address of the old one is published to.
func TestAnotherCluster(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	client := connect(t, etcd.client)
	r := openReader(t, client)
	f := follow(t, r)
	a := startNode(t, client, "a", "one")
	shows(t, r, "a/one=registered")
	etcd.stop()
	etcd.dir, etcd.token = t.TempDir(), "second"
	etcd.start()
	eventually(t, "another session", func() bool { return a.Stats().Sessions > 1 })
	a.published(t)
	eventually(t, "the reader is current", func() bool { return r.Health().Current })
	shows(t, r, "a/one=registered")
	a.set("two")
	shows(t, r, "a/two=registered")
	f.agrees(r)
}

// TestFull: when etcd is full the node stays present and says what is wrong; what it could not write arrives when there is room.
func TestFull(t *testing.T) {
	t.Parallel()
	etcd := newMember(t, func(c *embed.Config) { c.QuotaBackendBytes = 8 << 20 })
	etcd.start()
	client, admin := connect(t, etcd.client), etcd.admin()
	r := openReader(t, client)
	f := follow(t, r)
	a := startNode(t, client, "a", "one")
	shows(t, r, "a/one=registered")
	filler := strings.Repeat("x", 1<<20)
	for i := 0; ; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := admin.Put(ctx, "filler/"+fmt.Sprint(i), filler)
		cancel()
		if err != nil {
			break
		}
	}
	a.set("one", "two")
	late := startNode(t, client, "late", "one")
	for _, n := range []*node{a, late} {
		eventually(t, "a condition that says so", func() bool { return strings.Contains(n.Condition().Message, "etcd is full") })
	}
	time.Sleep(2 * presence)
	shows(t, r, "a/one=registered")
	if got := a.Stats(); got.Sessions != 1 {
		t.Errorf("the node lost its presence: %+v", got)
	}
	do(t, "make room", func(ctx context.Context) error {
		got, err := admin.Delete(ctx, "filler/", clientv3.WithPrefix())
		if err == nil {
			_, err = admin.Compact(ctx, got.Header.Revision, clientv3.WithCompactPhysical())
		}
		if err == nil {
			_, err = admin.Defragment(ctx, etcd.client)
		}
		if err == nil {
			_, err = admin.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		}
		return err
	})
	shows(t, r, "a/one=registered", "a/two=registered", "late/one=registered")
	a.published(t)
	f.agrees(r)
}

// TestSlow: etcd that accepts connections and answers nothing does not hold the node up: the publisher ends in time.
func TestSlow(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	cut := newProxy(t, etcd.client)
	cut.sever()
	n := startNode(t, connect(t, cut.url), "a", "one")
	eventually(t, "a condition that says so", func() bool { return strings.Contains(n.Condition().Message, "etcd does not answer in time") })
	impatient, err := fleet.Connect(fleet.Etcd{Endpoints: []string{cut.url}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := fleet.Open(impatient, fleet.ReaderConfig{})
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := r.Ready(ctx); err == nil || !strings.Contains(err.Error(), "does not answer in time") {
		t.Errorf("Ready: %v", err)
	}
	cut.mend()
	n.published(t)
	cut.sever()
	began := time.Now()
	n.stop()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the end took %v", took)
	}
}

// startThree returns a cluster of three running members.
func startThree(t testing.TB) []*member {
	members := make([]*member, 3)
	var all []string
	for i := range members {
		members[i] = newMember(t, nil)
		members[i].name = fmt.Sprintf("m%d", i)
		all = append(all, members[i].name+"="+members[i].peer)
	}
	for _, m := range members {
		m.cluster = strings.Join(all, ",")
		m.launch()
	}
	for _, m := range members {
		m.await()
	}
	return members
}

// TestMembers: members are killed and cut off from each other, one after the other, and nothing is lost.
func TestMembers(t *testing.T) {
	t.Parallel()
	members := startThree(t)
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, m.client)
	}
	client := connect(t, endpoints...)
	r := openReader(t, connect(t, endpoints...))
	f := follow(t, r)
	var nodes []*node
	for i := range 6 {
		nodes = append(nodes, startNode(t, client, fmt.Sprint("n", i), "one"))
	}
	expect := func(plugin string) {
		t.Helper()
		var want []string
		for i, n := range nodes {
			n.set(plugin)
			want = append(want, fmt.Sprintf("n%d/%s=registered", i, plugin))
		}
		shows(t, r, want...)
		for _, n := range nodes {
			n.published(t)
		}
		eventually(t, "the reader is current", func() bool { return r.Health().Current })
		f.agrees(r)
	}
	expect("start")
	for i, m := range members {
		m.stop()
		expect(fmt.Sprint("killed-", i))
		m.restart()
		expect(fmt.Sprint("back-", i))
	}
	for i, m := range members {
		m.cutOff(members, true)
		expect(fmt.Sprint("cut-", i))
		m.cutOff(members, false)
		expect(fmt.Sprint("mended-", i))
	}
	// Without a majority nothing can be written, and all say so.
	members[0].stop()
	members[1].stop()
	for _, n := range nodes {
		n.set("late")
		eventually(t, "a condition that says so", func() bool { return !n.Condition().OK })
	}
	eventually(t, "the reader says so", func() bool { return !r.Health().Current })
	members[0].launch()
	members[1].launch()
	expect("end")
	for _, n := range nodes {
		t.Logf("%+v", n.Stats())
	}
}

// cutOff stops or mends what a member and the others send to each other. Clients reach it as before.
func (m *member) cutOff(all []*member, cut bool) {
	for _, other := range all {
		if other == m {
			continue
		}
		mine, its := m.running.Server, other.running.Server
		if cut {
			mine.CutPeer(its.MemberID())
			its.CutPeer(mine.MemberID())
		} else {
			mine.MendPeer(its.MemberID())
			its.MendPeer(mine.MemberID())
		}
	}
}
