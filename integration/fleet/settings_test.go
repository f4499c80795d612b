package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/client"
)

// says returns what a daemon says of a condition: empty if it is in order.
func (d *daemon) says(condition string) string {
	d.t.Helper()
	c := client.New(filepath.Join(d.dir, "control.sock"))
	defer c.Close()
	listing, err := c.List(soon(d.t))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, found := range listing.Conditions {
		if found.Name == condition {
			return found.Message
		}
	}
	d.t.Fatalf("there is no condition %s in %v", condition, listing.Conditions)
	return ""
}

// configure replaces a text in the configuration of a daemon.
func (d *daemon) configure(what, by string) {
	d.t.Helper()
	file := filepath.Join(d.dir, "patchbay.yaml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(text), what, by, 1)), 0o600)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// TestSettings: nodes that compete for locks say when another node has other settings, and which, until it has not. That node calls its own
// plugins of locked names no more, and its callers get to the holder.
func TestSettings(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	a := newCaller(t, patchbay, "a", etcd.client, ca, allowNodes, "  exclusive: [Echo]\n")
	b := newCaller(t, patchbay, "b", etcd.client, ca, allowNodes, "")
	a.start()
	a.echo(nil)
	eventually(t, "a holds the lock", func() bool { return strings.Contains(a.run("fleet", "locks", "-o", "json"), `"node": "a"`) })
	b.start()
	stop := b.echo(nil)
	says := func() string { return a.says("fleet-settings") }
	eventually(t, "a says that b differs", func() bool {
		return strings.Contains(says(), "node b") && strings.Contains(says(), `"exclusive":[]`)
	})
	if got := a.run("events", "--kind", "degraded", "--since", "1h"); !strings.Contains(got, "node b") {
		t.Errorf("the events are %s", got)
	}
	if !strings.Contains(a.log.String(), "nodes of the fleet differ") {
		t.Errorf("the log is %s", a.log)
	}
	eventually(t, "b says that it does not list the type", func() bool { return strings.Contains(b.says("fleet-settings"), "Echo, node a") })
	if !strings.Contains(b.log.String(), "other nodes compete for locks of Echo") {
		t.Errorf("the log of b is %s", b.log)
	}
	local, err := client.New(filepath.Join(b.dir, "control.sock")).Conn("Echo", "one")
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	if _, err := answers(t, grpc_testing.NewTestServiceClient(local)); grpcstatus.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "fleet.exclusive") {
		t.Errorf("b calls its own: %v", err)
	}
	eventually(t, "a may not call that of b", func() bool { // on a busy machine a may not know yet that b has one
		_, err := answers(t, a.caller("b"))
		return grpcstatus.Code(err) == codes.FailedPrecondition
	})
	answersFrom(t, b.caller(""), "a")
	b.kill()
	stop()
	os.Remove(filepath.Join(b.dir, "plugins", "echo.sock"))
	b.configure("handlers:", "  exclusive: [Echo]\nhandlers:")
	b.start()
	eventually(t, "a says that all have the same", func() bool { return says() == "" })
}

// TestSettingsLate: a node that does not list a type, and that ran before any other competed for locks, is told when one begins to.
func TestSettingsLate(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	b := newCaller(t, patchbay, "b", etcd.client, ca, allowNodes, "")
	b.configure("retention: 1m", "retention: 24h") // it looks at the fleet three times in each
	b.start()
	b.echo(nil)
	b.inFleet(1)
	local, err := client.New(filepath.Join(b.dir, "control.sock")).Conn("Echo", "one")
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	answersFrom(t, grpc_testing.NewTestServiceClient(local), "b")
	a := newCaller(t, patchbay, "a", etcd.client, ca, allowNodes, "  exclusive: [Echo]\n")
	a.start()
	a.echo(nil)
	eventually(t, "b calls its own no more", func() bool {
		_, err := answers(t, grpc_testing.NewTestServiceClient(local))
		return grpcstatus.Code(err) == codes.FailedPrecondition
	})
	eventually(t, "b says that it does not list the type", func() bool { return strings.Contains(b.says("fleet-settings"), "Echo, node a") })
}
