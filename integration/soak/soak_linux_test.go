package main

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/integration/internal/rig/etcd"
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

// TestSoak is a short soak, on a machine that may be busy.
func TestSoak(t *testing.T) {
	o := options{length: *testLength, every: 7 * time.Second, bound: 2 * time.Minute, seed: *testSeed, names: 4, out: t.Output()}
	if err := run(t.Context(), o); err != nil {
		t.Error(err)
	}
}
