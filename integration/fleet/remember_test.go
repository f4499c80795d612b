package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// remembers reports whether the daemon has a node in the file of those that it called.
func (d *daemon) remembers(node string) bool {
	text, err := os.ReadFile(filepath.Join(d.dir, "state.db.nodes"))
	return err == nil && strings.Contains(string(text), `"node":"`+node+`"`)
}

// TestCallAfterRestartWithoutEtcd: a daemon that was killed and started again while etcd is away calls the nodes that it called before, and
// no others.
func TestCallAfterRestartWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	calling := newCaller(t, patchbay, "calling", etcd.client, ca, `[]`, "")
	nodes := map[string]*daemon{}
	for _, name := range []string{"called", "forgotten", "never"} {
		nodes[name] = newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "")
		nodes[name].start()
		nodes[name].echo(nil)
	}
	calling.start()
	calling.inFleet(3)
	for _, name := range []string{"called", "forgotten"} {
		answersFrom(t, calling.caller(name), name)
	}
	nodes["forgotten"].end(syscall.SIGTERM)
	calling.run("fleet", "forget", "forgotten")
	restart := func() {
		t.Helper()
		calling.kill()
		etcd.stop()
		calling.start()
	}
	eventually(t, "the file has the node that was called", func() bool { return calling.remembers("called") && !calling.remembers("forgotten") })
	if info, err := os.Stat(filepath.Join(calling.dir, "state.db.nodes")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	restart()
	for _, node := range []string{"called", ""} {
		if got, err := answers(t, calling.caller(node)); err != nil || got != "called" {
			t.Errorf("a call to node %q is answered by %q: %v", node, got, err)
		}
	}
	for _, node := range []string{"forgotten", "never"} {
		if _, err := answers(t, calling.caller(node)); grpcstatus.Code(err) != codes.Unavailable ||
			!strings.Contains(err.Error(), "cannot read the fleet: etcd cannot be reached") {
			t.Errorf("a call to node %s: %v", node, err)
		}
	}

	// What etcd has replaces what was remembered.
	nodes["called"].kill()
	etcd.start()
	nodes["called"].start() // at another port
	eventually(t, "the node is called where it is now", func() bool {
		got, err := answers(t, calling.caller("called"))
		return err == nil && got == "called"
	})
	answersFrom(t, calling.caller("never"), "never")

	// A file that is damaged is not used, and keeps nothing from starting.
	eventually(t, "the file has both", func() bool { return calling.remembers("called") && calling.remembers("never") })
	calling.kill()
	if err := os.WriteFile(filepath.Join(calling.dir, "state.db.nodes"), []byte(`[{"node":"called","addr`), 0o600); err != nil {
		t.Fatal(err)
	}
	calling.start()
	if !strings.Contains(calling.log.String(), "the nodes that were called before the start are not known") {
		t.Errorf("the log is %s", calling.log)
	}
	answersFrom(t, calling.caller("called"), "called")
	eventually(t, "the file is written again", func() bool { return calling.remembers("called") })
	if text, err := os.ReadFile(filepath.Join(calling.dir, "state.db.nodes.damaged")); err != nil || !strings.HasSuffix(string(text), "addr") {
		t.Errorf("the damaged file: %q, %v", text, err)
	}
}
