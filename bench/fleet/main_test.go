package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if isEtcd() {
		if err := serveEtcd(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// TestSmall: every step works, and etcd is gone afterwards.
func TestSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs etcd for half a minute")
	}
	s := sizes{nodes: 8, plugins: 3, watchers: 2, changes: 2, rounds: 1, rest: time.Second, dir: t.TempDir()}
	var out strings.Builder
	if err := run(t.Context(), s, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Logf("\n%s", &out)
	for _, want := range []string{
		"for 24 plugins", "a call to any node, after", "renewals of leases", "the last reader has it", "after it", "sees all nodes ready",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q", want)
		}
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
