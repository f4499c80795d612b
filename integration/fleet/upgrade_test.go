package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// degraded returns the message of a condition of a daemon, empty if it is not degraded.
func (d *daemon) degraded(name string) string {
	d.t.Helper()
	c := client.New(filepath.Join(d.dir, "control.sock"))
	defer c.Close()
	listing, err := c.List(soon(d.t))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, condition := range listing.Conditions {
		if condition.Name == name && condition.Status != "ok" {
			return condition.Message
		}
	}
	return ""
}

// TestFleetVersions: the versions of a plugin are listed with the nodes that run them. Different ones are a condition of the daemon that is to
// notice, after a while and until an upgrade has reached all nodes, and of no other one.
func TestFleetVersions(t *testing.T) {
	t.Parallel()
	etcd, patchbay := startOne(t), program(t, "patchbay")
	nodes := map[string]*daemon{}
	serve := func(node, version string) {
		t.Helper()
		p, err := rig.Serve("CSIPlugin", "one", version, filepath.Join(nodes[node].dir, "plugins", version+".sock"), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Stop(false) })
		nodes[node].run("wait", "CSIPlugin/one")
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		nodes[name] = newDaemon(t, patchbay, name, etcd.client)
		if name == "a" {
			nodes[name].configure("presence:", "drift: 1s\n  presence:")
		}
		nodes[name].start()
		serve(name, "1.0")
	}
	a := nodes["a"]
	a.run("fleet", "wait", "CSIPlugin/one", "--count", "4")
	if text := a.run("fleet", "versions"); !strings.Contains(text, "a, b, c and 1 more") || !strings.Contains(text, "DIFFERS") {
		t.Errorf("the table: %s", text)
	}
	if message := a.degraded("fleet-versions"); message != "" {
		t.Errorf("all have one version: %s", message)
	}
	serve("c", "2.0")
	var versions []*patchbayv1.FleetVersion
	eventually(t, "the new version is listed", func() bool {
		versions = listed[patchbayv1.FleetVersion](a, "versions", "--name", "one")
		return len(versions) == 2
	})
	if one, two := versions[0], versions[1]; one.Version != "1.0" || fmt.Sprint(one.Nodes) != "[a b d]" || two.Version != "2.0" ||
		fmt.Sprint(two.Nodes) != "[c]" || one.DiffersSince == nil || two.DiffersSince == nil {
		t.Errorf("the versions: %+v", versions)
	}
	if text := a.run("fleet", "versions", "-o", "name", "--node", "c"); text != "CSIPlugin/one@2.0\n" {
		t.Errorf("the names: %s", text)
	}
	eventually(t, "the condition is degraded", func() bool {
		return strings.Contains(a.degraded("fleet-versions"), "nodes have run different versions of CSIPlugin/one for more than 1s;")
	})
	nodes["b"].run("fleet", "versions")
	if message := nodes["b"].degraded("fleet-versions"); message != "" {
		t.Errorf("a node for which it has not lasted for long: %s", message)
	}
	if text := nodes["b"].run("fleet", "nodes", "-o", "json"); strings.Contains(text, "fleet-versions") {
		t.Errorf("what is about the fleet is published as if it were about the node: %s", text)
	}
	for _, name := range []string{"a", "b", "d"} {
		serve(name, "2.0")
	}
	eventually(t, "all have the new version", func() bool { return strings.Count(a.run("fleet", "versions", "-o", "name"), "\n") == 1 })
	eventually(t, "the condition is over", func() bool { return a.degraded("fleet-versions") == "" })
	if text := a.run("events"); strings.Count(text, "fleet-versions is in order again") != 1 {
		t.Errorf("the events: %s", text)
	}
}

// TestDrainWait: "fleet drain --wait" returns when other nodes have left the node alone; when it does not, the node stays drained, and the
// command says why and what to do.
func TestDrainWait(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	nodes, began, end := map[string]*daemon{}, make(chan struct{}), make(chan struct{})
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "")
		nodes[name].start()
	}
	a, b := nodes["a"], nodes["b"]
	b.echo(func(ctx context.Context, _ string) {
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("stay")) > 0 {
			close(began)
			<-end
		}
	})
	a.inFleet(1)
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"drain b --timeout 1s":        {2, "--timeout goes with --wait only"},
		"drain b --wait --timeout 0s": {2, "must be above zero"},
		"drain node-nope":             {1, `cannot drain node node-nope: the fleet has no such node; "patchbay fleet nodes" shows all nodes`},
		"forget node-nope":            {1, `cannot forget node node-nope: the fleet has no such node; "patchbay fleet nodes" shows all nodes`},
	} {
		_, err := a.try(append([]string{"fleet"}, strings.Fields(args)...)...)
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != want.code || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v", args, err)
		}
	}
	called := make(chan error, 1)
	go func() {
		ctx := metadata.AppendToOutgoingContext(soon(t), "stay", "1")
		_, err := a.caller("b").UnaryCall(ctx, &grpc_testing.SimpleRequest{})
		called <- err
	}()
	<-began
	eventually(t, "a wait that is too short says what the node does", func() bool { // on a busy machine it is not published yet
		_, err := a.try("fleet", "drain", "b", "--wait", "--timeout", "4s")
		if err == nil || !strings.Contains(err.Error(), "the time is over") ||
			!strings.Contains(err.Error(), `node b stays drained until "patchbay fleet uncordon b"`) {
			t.Fatalf("a wait that is too short: %v", err)
		}
		return strings.Contains(err.Error(), "has served calls of other nodes in the last 5s")
	})
	// waits begins to wait and returns what ends the command and returns its standard error.
	waits := func() (cmd *exec.Cmd, stderr *bytes.Buffer) {
		cmd, stderr = exec.Command(patchbay, "fleet", "drain", "b", "--wait", "--control-socket", filepath.Join(a.dir, "control.sock")), &bytes.Buffer{}
		cmd.Stderr = stderr
		before := b.drainedAt(a)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is drained again", func() bool { return !b.drainedAt(a).Equal(before) })
		return cmd, stderr
	}
	interrupted, said := waits()
	if err := interrupted.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := interrupted.Wait(); interrupted.ProcessState.ExitCode() != 1 ||
		said.String() != "patchbay: interrupted; node b stays drained until \"patchbay fleet uncordon b\"\n" {
		t.Errorf("after an interrupt: %v, %s", err, said)
	}
	undone, said := waits()
	gone := make(chan struct{})
	go func() { _ = undone.Wait(); close(gone) }()
	eventually(t, "a wait for a node that is not drained any more ends", func() bool {
		a.run("fleet", "uncordon", "b")
		a.run("fleet", "drain", "b")
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
	if !strings.Contains(said.String(), "cannot wait for node b: it is not drained any more") {
		t.Errorf("after an uncordon: %s", said)
	}
	drained, said := waits()
	returned := make(chan error, 1)
	go func() { returned <- drained.Wait() }()
	eventually(t, "the node says that it is drained", func() bool { return strings.Contains(b.degraded("fleet-drain"), "this node is drained") })
	select {
	case err := <-returned:
		t.Errorf("it returned during a call: %v, %s", err, said)
	default:
	}
	close(end)
	if err := <-called; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
	if err := <-returned; err != nil {
		t.Errorf("after the last call: %v, %s", err, said)
	}
	if text := a.run("fleet", "nodes"); !strings.Contains(text, "ready, drained") {
		t.Errorf("the nodes: %s", text)
	}
	eventually(t, "the node says that it is done", func() bool { return b.degraded("fleet-drain") == "" })
	a.run("fleet", "drain", "b", "--wait") // once more
	nodes["c"].end(syscall.SIGTERM)
	a.run("fleet", "drain", "c", "--wait")
}

// drainedAt returns when the node was drained, as another one sees it.
func (d *daemon) drainedAt(seenBy *daemon) (at time.Time) {
	d.t.Helper()
	nodes := listed[patchbayv1.FleetNode](seenBy, "nodes", "--node", d.name)
	if len(nodes) != 1 {
		d.t.Fatalf("the node: %v", nodes)
	}
	if nodes[0].DrainedAt != nil {
		at = nodes[0].DrainedAt.AsTime()
	}
	return at
}

// TestLastSeen: of a node that is gone it is known when it was last alive: between two times if nobody followed it then, else to the second.
func TestLastSeen(t *testing.T) {
	t.Parallel()
	etcd, patchbay := startOne(t), program(t, "patchbay")
	a, b := newDaemon(t, patchbay, "a", etcd.client), newDaemon(t, patchbay, "b", etcd.client)
	a.start()
	b.start()
	admin, key := etcd.admin(), keys.Space{}.NodeRange("b")+"presence"
	present := func() bool {
		found, err := admin.Get(soon(t), key)
		return err == nil && found.Count == 1
	}
	eventually(t, "b is published", present)
	time.Sleep(2 * presence) // what it wrote is old
	b.kill()
	killed := time.Now()
	eventually(t, "its presence has ended", func() bool { return !present() })
	gone := func() (n *patchbayv1.FleetNode) {
		t.Helper()
		var nodes []*patchbayv1.FleetNode
		eventually(t, "it is seen as unreachable", func() bool {
			nodes = listed[patchbayv1.FleetNode](a, "nodes", "--state", "unreachable")
			return len(nodes) == 1
		})
		return nodes[0]
	}
	n := gone()
	if n.LastSeen == nil || n.LastSeen.AsTime().After(killed) || n.LastSeenBefore == nil ||
		n.LastSeenBefore.AsTime().Before(killed.Add(-presence)) {
		t.Errorf("killed at %v, seen between %v and %v", killed, n.LastSeen, n.LastSeenBefore)
	}
	if text := a.run("fleet", "nodes"); !strings.Contains(text, "s to ") {
		t.Errorf("the nodes: %s", text)
	}
	b.start()
	eventually(t, "it is back", func() bool { return a.run("fleet", "nodes", "--state", "ready", "-o", "name") == "a\nb\n" })
	b.kill()
	n = gone()
	if seen := time.Now(); n.LastSeen == nil || n.LastSeen.AsTime().After(seen.Add(-presence)) || n.LastSeenBefore != nil {
		t.Errorf("seen at %v (before %v), and its presence had ended at %v", n.LastSeen, n.LastSeenBefore, seen)
	}
}
