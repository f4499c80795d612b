package fleet_test

import (
	"context"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
	"github.com/patchbay-dev/patchbay/plugin"
)

// connected returns the number of connections.
func (p *proxy) connected() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2 // each has two sides
}

// TestLockConnection: an elector has one connection to one member of etcd, and holds its lock over the loss of it.
func TestLockConnection(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	lock := plugin.Name{Type: "Echo", Name: "one"}
	var members []*proxy
	var endpoints []string
	for range 3 {
		p := newProxy(t, etcd.client)
		members, endpoints = append(members, p), append(endpoints, p.url)
	}
	a := compete(t, connect(t, endpoints...), "a", lock)
	eventually(t, "a holds the lock", func() bool { return a.Held(lock) != nil })
	count := func() (open, last int) {
		for i, p := range members {
			if n := p.connected(); n > 0 {
				open, last = open+n, i
			}
		}
		return open, last
	}
	hold := a.Held(lock)
	for range len(members) {
		open, used := count()
		if open != 1 {
			t.Errorf("there are %d connections", open)
		}
		members[used].reset()
		eventually(t, "another member is connected to", func() bool { open, now := count(); return open == 1 && now != used })
	}
	if a.Held(lock) != hold {
		t.Error("the lock was lost with a connection")
	}
}

// TestLockRestlessMember: a member of etcd whose connections never last for a lease does not keep the next holder from the lock.
func TestLockRestlessMember(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	lock := plugin.Name{Type: "Echo", Name: "one"}
	link, restless := newProxy(t, etcd.client), newProxy(t, etcd.client)
	a := compete(t, connect(t, link.url), "a", lock)
	eventually(t, "a holds the lock", func() bool { return a.Held(lock) != nil })
	b := compete(t, connect(t, restless.url, etcd.client, restless.url), "b", lock)
	eventually(t, "both stand for the lock", func() bool { return candidates(t, etcd) == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	var resetting sync.WaitGroup
	defer resetting.Wait()
	defer cancel()
	resetting.Go(func() {
		for ctx.Err() == nil {
			restless.reset()
			pause(ctx, lockTTL/4)
		}
	})
	link.sever()
	began := time.Now()
	eventually(t, "b holds the lock", func() bool { return b.Held(lock) != nil })
	t.Logf("b holds the lock after %v, with a lease of %v", time.Since(began).Round(time.Millisecond), lockTTL)
}

// TestElectionOfEtcd shows why locks are not elections of etcd's own client: when the key of the holder is removed while it is cut off, the
// next one is elected at once, while the first one cannot know. What an Elector does then is tested by TestLocks/cut-off-and-deleted.
func TestElectionOfEtcd(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	link := newProxy(t, etcd.client)
	compete := func(endpoint string) (*concurrency.Session, *concurrency.Election) {
		session, err := concurrency.NewSession(adminOf(t, endpoint), concurrency.WithTTL(60))
		if err != nil {
			t.Fatal(err)
		}
		return session, concurrency.NewElection(session, "/election")
	}
	session, first := compete(link.url)
	_, second := compete(etcd.client)
	do(t, "elect the first one", func(ctx context.Context) error { return first.Campaign(ctx, "first") })
	link.sever()
	do(t, "remove its key", func(ctx context.Context) error { _, err := etcd.admin().Delete(ctx, first.Key()); return err })
	do(t, "elect the second one", func(ctx context.Context) error { return second.Campaign(ctx, "second") })
	select {
	case <-session.Done():
		t.Error("the first one knows: locks may be elections")
	default:
	}
	link.mend()
}

// TestLockLeft: a node that gives up a lock, or stops, says so in its key before it removes it, so that the next one need not wait.
func TestLockLeft(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	lock := plugin.Name{Type: "Echo", Name: "one"}
	space := keys.Space{}
	changes := etcd.admin().Watch(t.Context(), space.LockRange("a"), clientv3.WithPrefix())
	a := &locks.Elector{Cluster: connect(t, etcd.client), Node: "a", TTL: lockTTL}
	if err := a.Init(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { a.Run(ctx) })
	for _, leave := range []func(){func() { a.Stand(nil) }, stop} {
		a.Stand([]plugin.Name{lock})
		eventually(t, "a holds the lock", func() bool { return a.Held(lock) != nil })
		leave()
		var last string
		for gone := false; !gone; {
			for _, event := range (<-changes).Events {
				if gone = event.Type == clientv3.EventTypeDelete; !gone {
					last = string(event.Kv.Value)
				}
			}
		}
		if last != keys.ContenderLeft {
			t.Errorf("the last value was %q", last)
		}
	}
}
