package fleet_test

import (
	"context"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/patchbay-dev/patchbay/fleet"
)

// compete has a node compete for a lock until the test ends.
func compete(t *testing.T, cluster *fleet.Cluster, node string, lock fleet.Lock) *fleet.Elector {
	t.Helper()
	e, err := fleet.NewElector(cluster, fleet.ElectorConfig{Node: node, TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	e.Stand([]fleet.Lock{lock})
	return e
}

// TestHolderWithoutKey: a holder whose key was deleted, or was replaced, gives the lock up with its next renewal, and competes anew.
func TestHolderWithoutKey(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	lock := fleet.Lock{Type: "Echo", Name: "one"}
	a := compete(t, connect(t, etcd.client), "a", lock)
	eventually(t, "a holds the lock", func() bool { return a.Held(lock) != nil })
	b := compete(t, connect(t, etcd.client), "b", lock)
	admin := etcd.admin()
	keys := func() (all *clientv3.GetResponse) {
		do(t, "list the keys", func(ctx context.Context) (err error) {
			all, err = admin.Get(ctx, fleet.Space{}.Base()+"elections/", clientv3.WithPrefix(),
				clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
			return err
		})
		return all
	}
	eventually(t, "both stand for the lock", func() bool { return keys().Count == 2 })
	hold, key := a.Held(lock), string(keys().Kvs[0].Key)
	for _, replace := range []bool{false, true} {
		do(t, "delete the key of the holder", func(ctx context.Context) error {
			_, err := admin.Delete(ctx, key)
			if err == nil && replace {
				_, err = admin.Put(ctx, key, "somebody")
			}
			return err
		})
		eventually(t, "the holder gives up", func() bool {
			select {
			case <-hold.Done():
				return true
			default:
				return false
			}
		})
		eventually(t, "one node holds the lock", func() bool { return (a.Held(lock) != nil) != (b.Held(lock) != nil) || replace })
		before := hold.Token
		if hold = b.Held(lock); hold == nil {
			return
		}
		if hold.Token <= before {
			t.Errorf("the token was %d and is %d now", before, hold.Token)
		}
		key = string(keys().Kvs[0].Key)
	}
}

// TestDialExclusive: a program that competes for no lock, and dials as documented, calls the node that holds it, each time.
func TestDialExclusive(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t), newAuthority(t)
	for _, name := range []string{"a", "b"} {
		d := newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "  exclusive: [Echo]\n")
		d.start()
		d.echo(nil)
		d.inFleet(map[string]int{"a": 1, "b": 2}[name])
	}
	ca.signNode("program")
	credentials, err := fleet.NewCredentials(fleet.TLS{CA: ca.file("ca.crt"), Cert: ca.file("program.crt"), Key: ca.file("program.key")})
	if err != nil {
		t.Fatal(err)
	}
	cluster := connect(t, etcd.client)
	reader := fleet.Open(cluster, fleet.ReaderConfig{})
	defer reader.Close()
	locks, err := fleet.OpenLocks(cluster, fleet.Space{})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	eventually(t, "a node holds the lock", func() bool {
		node, exclusive, err := locks.Holder(t.Context(), fleet.Lock{Type: "Echo", Name: "one"})
		return err == nil && exclusive && node != ""
	})
	config := fleet.DialerConfig{Find: reader.Find, Leader: locks.Holder, Credentials: credentials}
	conn, err := fleet.Dial(soon(t), "Echo", "one", config, fleet.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, failed := grpc_testing.NewTestServiceClient(conn), 0
	for range 1000 {
		if _, err := answers(t, c); err != nil {
			failed++
			t.Log(err)
		}
	}
	if failed > 0 {
		t.Errorf("%d of 1,000 calls failed", failed)
	}
}

// candidates returns how many stand for locks.
func candidates(t *testing.T, etcd *member) (count int64) {
	t.Helper()
	do(t, "count the keys", func(ctx context.Context) error {
		found, err := etcd.admin().Get(ctx, fleet.Space{}.Base()+"elections/Echo/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil {
			count = found.Count
		}
		return err
	})
	return count
}
