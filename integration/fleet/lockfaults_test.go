package fleet_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

// lockFault is what happens to etcd, or to a node, during a history.
type lockFault struct {
	name string
	etcd func(t testing.TB) []*member
	// ttl is the lease of a node; nil for the same for all.
	ttl    func(node int) time.Duration
	happen func(ctx context.Context, b *lockBed)
}

func one(t testing.TB) []*member { return []*member{startOne(t)} }

var lockFaults = []lockFault{
	{name: "none", etcd: one, happen: func(context.Context, *lockBed) {}},
	{name: "key-deleted", etcd: one, happen: times(4, deleteKey)},
	{name: "lease-revoked", etcd: one, happen: times(2, revokeLease)},
	{name: "node-cut-off", etcd: one, happen: times(2, cutNode)},
	{name: "cut-off-and-deleted", etcd: one, happen: times(2, cutNodeAndDelete)},
	{name: "member-killed", etcd: startThree, happen: times(2, killMember)},
	{name: "member-stopped", etcd: startThreeProcesses, happen: times(2, stopMember)},
	{name: "member-cut-off", etcd: startThree, happen: times(2, cutMember)},
	{name: "restored", etcd: one, happen: restore(0)},
	{name: "restored-bumped", etcd: one, happen: restore(1_000_000)},
	{name: "restored-unseen", etcd: one, happen: restoredUnseen},
	{name: "other-lease", etcd: one, ttl: otherLease, happen: restoredUnseen},
	{name: "writes-what-it-may", etcd: one, happen: writes},
}

// times has something happen several times, with a pause after each.
func times(n int, do func(ctx context.Context, b *lockBed)) func(ctx context.Context, b *lockBed) {
	return func(ctx context.Context, b *lockBed) {
		for range n {
			do(ctx, b)
			pause(ctx, 500*time.Millisecond)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// holding waits for a node that holds a lock; nil if there is none soon.
func (b *lockBed) holding(ctx context.Context, l plugin.Name) *lockNode {
	for end := time.Now().Add(2 * lockTTL); ctx.Err() == nil && time.Now().Before(end); pause(ctx, time.Millisecond) {
		if n := b.holder(l); n != nil {
			return n
		}
	}
	return nil
}

// keysOf returns the keys by which a node stands for a lock.
func (b *lockBed) keysOf(ctx context.Context, n *lockNode, l plugin.Name) (all []*mvccpb.KeyValue) {
	found, err := adminOf(b.t, b.etcd[0].client).Get(ctx, keys.Space{}.LockRange(n.name)+l.String()+"/", clientv3.WithPrefix())
	if err != nil {
		return nil
	}
	return found.Kvs
}

func deleteKey(ctx context.Context, b *lockBed) {
	for _, l := range b.locks {
		if n := b.holding(ctx, l); n != nil {
			b.deleteKeys(ctx, n, l)
		}
	}
}

func (b *lockBed) deleteKeys(ctx context.Context, n *lockNode, l plugin.Name) {
	for _, kv := range b.keysOf(ctx, n, l) {
		_, _ = adminOf(b.t, b.etcd[0].client).Delete(ctx, string(kv.Key))
	}
}

func revokeLease(ctx context.Context, b *lockBed) {
	for _, l := range b.locks {
		if n := b.holding(ctx, l); n != nil {
			for _, kv := range b.keysOf(ctx, n, l) {
				_, _ = adminOf(b.t, b.etcd[0].client).Revoke(ctx, clientv3.LeaseID(kv.Lease))
			}
		}
	}
}

// cutNode cuts the holder of a lock off from etcd for longer than its lease.
func cutNode(ctx context.Context, b *lockBed) {
	if n := b.holding(ctx, b.locks[0]); n != nil {
		n.sever(true)
		pause(ctx, lockTTL+time.Second)
		n.sever(false)
	}
}

// cutNodeAndDelete cuts the holder of a lock off, and somebody deletes its key.
func cutNodeAndDelete(ctx context.Context, b *lockBed) {
	if n := b.holding(ctx, b.locks[0]); n != nil {
		n.sever(true)
		b.deleteKeys(ctx, n, b.locks[0])
		pause(ctx, lockTTL+time.Second)
		n.sever(false)
	}
}

func (n *lockNode) sever(cut bool) {
	n.left.Store(cut)
	for _, p := range n.link {
		p.set(cut)
	}
}

func killMember(ctx context.Context, b *lockBed) {
	m := b.etcd[rand.IntN(len(b.etcd))]
	m.stop()
	pause(ctx, lockTTL)
	m.start()
}

func stopMember(ctx context.Context, b *lockBed) {
	m := b.etcd[rand.IntN(len(b.etcd))]
	m.freeze(true)
	pause(ctx, lockTTL+time.Second)
	m.freeze(false)
}

func cutMember(ctx context.Context, b *lockBed) {
	m := b.etcd[rand.IntN(len(b.etcd))]
	m.cutOff(b.etcd, true)
	pause(ctx, lockTTL+time.Second)
	m.cutOff(b.etcd, false)
}

// restore restores etcd from a backup that knows other holders.
func restore(bump uint64) func(ctx context.Context, b *lockBed) {
	return func(ctx context.Context, b *lockBed) {
		backup := b.etcd[0].save()
		pause(ctx, 2*time.Second) // locks pass on
		// Behind a restore etcd says who held the locks then, until the leases of then have ended, which only the nodes know better.
		b.blind.Store(true)
		b.etcd[0].restore(backup, bump)
		pause(ctx, 2*lockTTL)
		b.blind.Store(false)
	}
}

// restoredUnseen restores etcd from a backup that knows of no holder, while the holder is cut off and cannot know.
func restoredUnseen(ctx context.Context, b *lockBed) {
	for _, n := range b.nodes {
		n.left.Store(true)
		n.Stand(nil)
	}
	admin := adminOf(b.t, b.etcd[0].client)
	for end := time.Now().Add(patience); ctx.Err() == nil && time.Now().Before(end); pause(ctx, 10*time.Millisecond) {
		if found, err := admin.Get(ctx, keys.Space{}.LockSpace()+"@node/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err == nil && found.Count == 0 {
			break
		}
	}
	backup := b.etcd[0].save()
	b.nodes[0].Stand(b.locks)
	for b.holding(ctx, b.locks[0]) != b.nodes[0] && ctx.Err() == nil {
		pause(ctx, 10*time.Millisecond)
	}
	for _, n := range b.nodes[1:] {
		n.Stand(b.locks)
	}
	etcd := restored(b.t, backup, 1_000_000)
	b.nodes[0].sever(true)
	b.blind.Store(true)
	b.readerLink[0].retarget(etcd.client)
	for _, n := range b.nodes {
		n.link[0].retarget(etcd.client)
	}
	pause(ctx, 3*lockTTL)
	b.blind.Store(false)
	for _, n := range b.nodes {
		n.sever(false)
	}
}

// otherLease gives one node a longer lease than the others.
func otherLease(node int) time.Duration {
	if node == 0 {
		return 5 * lockTTL
	}
	return lockTTL
}

// writes has a node write all that it may: it stands for locks and leaves them, says of itself what is not so, and says that tokens are high.
func writes(ctx context.Context, b *lockBed) {
	admin, space := adminOf(b.t, b.etcd[0].client), keys.Space{}
	lease := clientv3.LeaseID(0)
	for i := range 100 {
		l := b.locks[rand.IntN(len(b.locks))]
		if i%10 == 0 {
			if granted, err := admin.Grant(ctx, 60); err == nil {
				lease = granted.ID
			}
		}
		key := keys.Contender{Lock: l, Node: "evil", Lease: lease}.Key(space)
		switch rand.IntN(8) {
		case 0:
			_, _ = admin.Put(ctx, key, fmt.Sprint("holds ", rand.IntN(4), rand.Int64()), clientv3.WithLease(lease))
		case 1:
			_, _ = admin.Put(ctx, key, "waits -1", clientv3.WithLease(lease))
		case 2:
			_, _ = admin.Put(ctx, key, "left", clientv3.WithLease(lease))
		case 3:
			_, _ = admin.Put(ctx, key, "holds 10 10")
		case 4:
			_, _ = admin.Put(ctx, key+"/more", "x", clientv3.WithLease(lease))
		case 5:
			_, _ = admin.Put(ctx, space.TokenBaseKey("evil"), fmt.Sprint(rand.Int64()))
		case 6:
			_, _ = admin.Delete(ctx, space.TokenBaseKey("evil"))
		case 7:
			_, _ = admin.Delete(ctx, key)
		}
		if i%10 == 9 {
			_, _ = admin.Revoke(ctx, lease)
		}
		pause(ctx, 50*time.Millisecond)
	}
}
