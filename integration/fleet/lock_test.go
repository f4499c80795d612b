package fleet_test

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	"github.com/patchbay-dev/patchbay/plugin"
)

// compete has a node compete for a lock until the test ends.
func compete(t *testing.T, cluster *fleet.Cluster, node string, lock plugin.Name) *locks.Elector {
	t.Helper()
	return competeAnd(t, cluster, node, lock, io.Discard)
}

// competeAnd is compete with a log.
func competeAnd(t *testing.T, cluster *fleet.Cluster, node string, lock plugin.Name, log io.Writer) *locks.Elector {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(log, nil))
	e := &locks.Elector{Cluster: cluster, Node: node, TTL: 2 * time.Second, Logger: logger}
	if err := e.Init(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	e.Stand([]plugin.Name{lock})
	return e
}

// TestHolderWithoutKey: a holder whose key was deleted, or was replaced, gives the lock up with its next renewal, and competes anew.
func TestHolderWithoutKey(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	lock := plugin.Name{Type: "Echo", Name: "one"}
	a := compete(t, connect(t, etcd.client), "a", lock)
	eventually(t, "a holds the lock", func() bool { return a.Held(lock) != nil })
	b := compete(t, connect(t, etcd.client), "b", lock)
	admin := etcd.admin()
	locked := func() (all *clientv3.GetResponse) {
		do(t, "list the keys", func(ctx context.Context) (err error) {
			all, err = admin.Get(ctx, keys.Space{}.LockSpace()+"@node/", clientv3.WithPrefix(),
				clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
			return err
		})
		return all
	}
	first := func() (key string) { return string(locked().Kvs[0].Key) } // that of the one that may hold the lock
	eventually(t, "both stand for the lock", func() bool { return locked().Count == 2 })
	hold, own := a.Held(lock), first()
	for _, replace := range []bool{false, true} {
		do(t, "delete the key of the holder", func(ctx context.Context) error {
			_, err := admin.Delete(ctx, own)
			if err == nil && replace {
				_, err = admin.Put(ctx, own, "somebody")
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
		eventually(t, "one node holds the lock", func() bool { return (a.Held(lock) != nil) != (b.Held(lock) != nil) })
		before := hold.Token
		if hold = b.Held(lock); hold == nil {
			return
		}
		if hold.Token <= before {
			t.Errorf("the token was %d and is %d now", before, hold.Token)
		}
		own = first()
	}
}

var dials = flag.Int("dials", 100, "how many programs dial an exclusive plugin")

// TestDialExclusive: programs that dial as docs/how-to/fleet.md says, and compete for no lock, call the node that holds it with their first
// call. With -dials 1000 it is the measurement of issue 29.
func TestDialExclusive(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	for _, name := range []string{"a", "b"} {
		d := newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "  exclusive: [Echo]\n")
		d.configure("presence: 2s", "presence: 20s") // a holder that this machine holds up for 2 s is not what this is about
		d.start()
		d.echo(nil)
		d.inFleet(map[string]int{"a": 1, "b": 2}[name])
	}
	ca.signNode("program")
	cluster := connect(t, etcd.client)
	run := func() error {
		credentials, err := nodecall.NewCredentials(nodecall.TLS{CA: ca.file("ca.crt"), Cert: ca.file("program.crt"), Key: ca.file("program.key")})
		if err != nil {
			return err
		}
		lookup := openLookup(t, cluster, nil)
		defer lookup.Close()
		dialer := &nodecall.Dialer{Find: lookup.Find, Leader: lookup.Holder, Credentials: credentials}
		defer dialer.Close()
		_, err = answers(t, grpc_testing.NewTestServiceClient(through(t, dialer.Dial("Echo", "one", nodecall.Policy{}))))
		return err
	}
	eventually(t, "a node holds the lock", func() bool { return run() == nil })
	failed := 0
	for range *dials {
		if err := run(); err != nil {
			failed++
			t.Log(err)
		}
	}
	t.Logf("%d of %d programs failed", failed, *dials)
	if failed > 0 {
		t.Errorf("%d of %d programs failed", failed, *dials)
	}
}

// candidates returns how many stand for locks.
func candidates(t *testing.T, etcd *member) (count int64) {
	t.Helper()
	do(t, "count the keys", func(ctx context.Context) error {
		found, err := etcd.admin().Get(ctx, keys.Space{}.LockSpace()+"@node/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil {
			count = found.Count
		}
		return err
	})
	return count
}
