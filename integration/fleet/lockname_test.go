package fleet_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// locks returns what "fleet locks" shows.
func (d *daemon) locks() []*patchbayv1.FleetLock {
	d.t.Helper()
	return listed[patchbayv1.FleetLock](d, "locks")
}

// listed returns what a command of "patchbay fleet" lists as JSON.
func listed[M any, P interface {
	*M
	proto.Message
}](d *daemon, command ...string) []*M {
	d.t.Helper()
	all, err := rig.Messages[M, P]([]byte(d.run(append(append([]string{"fleet"}, command...), "-o", "json")...)))
	if err != nil {
		d.t.Fatal(err)
	}
	return all
}

// TestLockTaken: a second daemon with the name of a node competes for no lock and says so, and takes none when the first one gives it up.
func TestLockTaken(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	exclusive := func(name string) *daemon {
		d := newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "  exclusive: [Echo]\n")
		d.configure("presence: 2s", "presence: 4s")
		d.start()
		return d
	}
	first := exclusive("a")
	stop := first.echo(nil)
	eventually(t, "a holds the lock", func() bool { l := first.locks(); return len(l) == 1 && l[0].Node == "a" })
	second := exclusive("a")
	second.echo(nil)
	eventually(t, "the second one says that another one has its name", func() bool {
		return strings.Contains(second.says("fleet"), "another daemon holds the name of the node")
	})
	other := exclusive("b")
	other.echo(nil)
	eventually(t, "b competes", func() bool { l := first.locks(); return len(l) == 1 && l[0].Candidates == 2 })
	os.Remove(filepath.Join(first.dir, "plugins", "echo.sock"))
	stop()
	eventually(t, "b holds the lock", func() bool { l := first.locks(); return len(l) == 1 && l[0].Node == "b" })
	answersFrom(t, first.caller(""), "b")
	if said := second.says("fleet"); !strings.Contains(said, "competes for no lock") {
		t.Errorf("the second one says %q", said)
	}
	first.end(syscall.SIGTERM)
	eventually(t, "the second one has the name", func() bool { return second.says("fleet") == "" })
	eventually(t, "it competes", func() bool { return second.locks()[0].Candidates == 2 })
}

// TestLockToken: "fleet locks" and "fleet list" show the token that calls carry.
func TestLockToken(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	a := newCaller(t, patchbay, "a", etcd.client, ca, allowNodes, "  exclusive: [Echo]\n")
	a.configure("presence: 2s", "presence: 4s")
	a.start()
	var carried, shown atomic.Int64
	a.echo(func(_ context.Context, token string) {
		n, err := strconv.ParseInt(token, 10, 64)
		if err != nil {
			t.Errorf("a call has the token %q", token)
		}
		carried.Store(n)
	})
	a.inFleet(1)
	defer func() { t.Logf("fleet locks shows the token %d, and calls carry %d", shown.Load(), carried.Load()) }()
	eventually(t, "the token of calls is shown", func() bool {
		if _, err := answers(t, a.caller("")); err != nil {
			return false
		}
		locks := a.locks()
		if len(locks) == 0 {
			return false
		}
		shown.Store(locks[0].FencingToken)
		listed := strings.Contains(a.run("fleet", "list", "-o", "json"), `"fencingToken": `+strconv.FormatInt(carried.Load(), 10))
		return shown.Load() == carried.Load() && listed
	})
}
