package fleet_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// callees calls any node some times and returns who answered.
func (d *daemon) callees() string {
	seen := map[string]bool{}
	for range 20 {
		if node, err := answers(d.t, d.caller("")); err == nil {
			seen[node] = true
		}
	}
	var all []string
	for _, node := range []string{"a", "b", "c"} {
		if seen[node] {
			all = append(all, node)
		}
	}
	return strings.Join(all, " ")
}

// TestDrain: calls to any node leave a node that is drained, and come back; a node that is gone is forgotten, and one that is there is not.
func TestDrain(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	nodes := map[string]*daemon{}
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "  labels: {zone: "+name+name+", rack: \"1\"}\n")
		nodes[name].start()
	}
	a := nodes["a"]
	nodes["b"].echo(nil)
	nodes["c"].echo(nil)
	a.inFleet(2)
	indexed(t, etcd.admin(), 2)
	eventually(t, "both are called", func() bool { return a.callees() == "b c" })
	a.run("fleet", "drain", "b")
	eventually(t, "the drained one is not called", func() bool { return a.callees() == "c" })
	answersFrom(t, a.caller("b"), "b")
	if text := a.run("fleet", "nodes"); !strings.Contains(text, "ready, drained") {
		t.Errorf("a drained node: %s", text)
	}
	nodes["c"].kill()
	eventually(t, "the last one is drained", func() bool { return a.callees() == "b" })
	for args, want := range map[string]string{
		"nodes --label zone=bb": "b\n", "nodes --label zone=bb --label rack=1": "b\n", "nodes --label zone=cc --state stopped": "",
		"list --label zone=bb": "b/Echo/one\n", "list --label zone=aa": "",
	} {
		if text := a.run(append([]string{"fleet", "-o", "name"}, strings.Fields(args)...)...); text != want {
			t.Errorf("%s: %q", args, text)
		}
	}
	eventually(t, "one that is there is not forgotten", func() bool { // on a busy machine its presence may be late, until it is back
		_, err := a.try("fleet", "forget", "b")
		return err != nil && strings.Count(err.Error(), "forget node b") == 1 &&
			strings.Contains(err.Error(), "the node is still running; stop its daemon")
	})
	a.run("fleet", "uncordon", "b")
	eventually(t, "the node is not drained any more", func() bool { return !strings.Contains(a.run("fleet", "nodes"), "drained") })
	eventually(t, "the dead one is forgotten", func() bool { _, err := a.try("fleet", "forget", "c"); return err == nil })
	eventually(t, "it is not shown", func() bool { return a.run("fleet", "nodes", "-o", "name") == "a\nb\n" })
	indexed(t, etcd.admin(), 1)
	for _, order := range []string{"drain", "forget"} {
		if _, err := a.try("fleet", order, "c"); err == nil || !strings.Contains(err.Error(), "the fleet has no such node") {
			t.Errorf("%s one that is not there: %v", order, err)
		}
	}
	nodes["c"].start()
	eventually(t, "it is back", func() bool { return a.callees() == "b" || a.callees() == "b c" })
}

// TestDrainLocks: a drained node gives its locks up, and the list of locks says who has them.
func TestDrainLocks(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	var a *daemon
	for _, name := range []string{"b", "a"} {
		a = newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "  exclusive: [Echo]\n")
		a.start()
		a.echo(nil)
	}
	lock := func() *patchbayv1.FleetLock {
		t.Helper()
		if locks := a.locks(); len(locks) == 1 {
			return locks[0]
		}
		return &patchbayv1.FleetLock{}
	}
	var first *patchbayv1.FleetLock
	eventually(t, "both want the lock", func() bool { first = lock(); return first.Node != "" && first.Candidates == 2 })
	other := map[string]string{"a": "b", "b": "a"}[first.Node]
	a.run("fleet", "drain", first.Node)
	var l *patchbayv1.FleetLock
	eventually(t, "the other has it", func() bool { l = lock(); return l.Node == other && l.Candidates == 1 })
	if l.FencingToken <= first.FencingToken || l.Type != "Echo" || l.Name != "one" {
		t.Errorf("%+v, after %+v", l, first)
	}
	eventually(t, "it is called", func() bool { node, err := answers(t, a.caller("")); return err == nil && node == other })
	a.run("fleet", "uncordon", first.Node)
	eventually(t, "both want it", func() bool { return lock().Candidates == 2 })
	if text := a.run("fleet", "locks"); !strings.Contains(text, "CANDIDATES") || !strings.Contains(text, "Echo") {
		t.Errorf("the table: %s", text)
	}
}

// TestLostEtcdIsSaid: who watches and who waits is told when the daemon has lost etcd, and when it has found it again.
func TestLostEtcdIsSaid(t *testing.T) {
	t.Parallel()
	etcd, patchbay := startOne(t), program(t, "patchbay")
	a := newDaemon(t, patchbay, "a", etcd.client)
	a.start()
	a.plugin("one")
	a.shows("a/one=registered")
	begin := func(args ...string) (out, said *lines) {
		cmd := exec.CommandContext(t.Context(), patchbay, append(args, "--control-socket", filepath.Join(a.dir, "control.sock"))...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		out, said = &lines{}, &lines{}
		cmd.Stdout, cmd.Stderr = out, said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Wait() })
		return out, said
	}
	watched, watch := begin("fleet", "watch", "-o", "json")
	_, wait := begin("fleet", "wait", "CSIPlugin/two", "--timeout", "5m")
	watched.await(t, `"name":"one"`)
	etcd.stop()
	watch.await(t, "warning: the fleet may have changed since: etcd cannot be reached")
	wait.await(t, "warning: the fleet may have changed since: etcd cannot be reached")
	_, late := begin("fleet", "watch")
	late.await(t, "warning: the fleet may have changed since: etcd cannot be reached")
	if _, err := a.try("fleet", "wait", "CSIPlugin/two", "--timeout", "1s"); err == nil || !strings.Contains(err.Error(), "0 of 1 match (the fleet may have changed since") {
		t.Errorf("a wait that ends meanwhile: %v", err)
	}
	etcd.start()
	for _, said := range []*lines{watch, wait, late} {
		said.await(t, "the daemon follows etcd again")
	}
	a.plugin("two")
	watched.await(t, `"name":"two"`)
}
