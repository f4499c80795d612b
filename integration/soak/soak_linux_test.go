package main

import (
	"flag"
	"os"
	"testing"
	"time"
)

var (
	testLength = flag.Duration("for", 20*time.Second, "how long TestSoak disturbs the daemon")
	testSeed   = flag.Uint64("seed", 1, "the seed of TestSoak")
)

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == etcdRole {
		exit(serveEtcd(os.Args[2], os.Args[3], os.Args[4]))
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
