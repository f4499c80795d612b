package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/integration/internal/rig/etcd"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

var (
	testLength = flag.Duration("for", 20*time.Second, "how long TestSoak disturbs the daemon")
	testSeed   = flag.Uint64("seed", 1, "the seed of TestSoak")
)

func TestMain(m *testing.M) {
	if is, err := etcd.Role(); is {
		exit(err)
	}
	os.Exit(m.Run())
}

// TestCleanAfterKill: what a process leaves that is killed while it makes its socket is removed with the socket.
func TestCleanAfterKill(t *testing.T) {
	dir := t.TempDir()
	in := &instance{path: filepath.Join(dir, "p.sock"), process: exec.CommandContext(t.Context(), "sleep", "1000")}
	if err := in.process.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := sock.Lock(in.path); err != nil { // as the process holds it
		t.Fatal(err)
	}
	e := &entry{living: []*instance{in}}
	e.kill()
	if err := e.clean(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestSoak is a short soak, on a machine that may be busy.
func TestSoak(t *testing.T) {
	o := options{length: *testLength, every: 7 * time.Second, bound: 2 * time.Minute, seed: *testSeed, names: 4, out: t.Output()}
	if err := run(t.Context(), o); err != nil {
		t.Error(err)
	}
}
