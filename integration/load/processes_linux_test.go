package load

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// catalogue returns so many launched plugins, for the configuration.
func catalogue(count int) string {
	var b strings.Builder
	b.WriteString("plugins:\n")
	for i := range count {
		fmt.Fprintf(&b, "  - name: l%d\n    command: [%s, serve, %s, l%[1]d, \"1\"]\n    env: {GORACE: atexit_sleep_ms=0, GOMAXPROCS: \"1\"}\n", i,
			filepath.Join(bin, "plugin"), pluginType)
	}
	return b.String()
}

// running returns how many processes of plugins there are.
func running(t *testing.T) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, path := range lines {
		if text, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(text), filepath.Join(bin, "plugin")+"\x00serve") {
			count++
		}
	}
	return count
}

func registered(t *testing.T, d *rig.Daemon, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := d.Client.Wait(ctx, pluginType, name, client.GoalRegistered); err != nil {
		t.Fatal(err)
	}
}

// TestSequence: one launched plugin is replaced again and again. There is never more than one process afterwards, and nothing is left of
// those that were.
func TestSequence(t *testing.T) {
	d := newDaemon(t, 0, catalogue(1))
	registered(t, d, "l0")
	before := use(t, d)
	began := time.Now()
	pids := map[int]bool{}
	for i := range *sequence {
		l, err := d.Client.Restart(t.Context(), "l0")
		if err != nil {
			t.Fatalf("restart %d: %v", i, err)
		}
		pids[int(l.Pid)] = true
		if n := running(t); n != 1 {
			t.Fatalf("after restart %d there are %d processes", i, n)
		}
	}
	if len(pids) < 2 {
		t.Errorf("the processes were %v", pids)
	}
	took := time.Since(began)
	after := use(t, d)
	t.Logf("%d processes one after the other, %v each\nbefore: %v\nafter: %v", *sequence, (took / time.Duration(*sequence)).Round(time.Microsecond),
		before, after)
	eventually(t, "the descriptors are given back", func() string {
		if u := use(t, d); u.Descriptors > before.Descriptors+3 {
			return u.String()
		}
		return ""
	})
	sockets, err := filepath.Glob(filepath.Join(d.Plugins(), "[^.]*"))
	if err != nil || len(sockets) > 1 {
		t.Errorf("in the plugin directory are %v, %v", sockets, err)
	}
}

// TestAtOnce: many launched plugins start at once with the daemon, and end with it.
func TestAtOnce(t *testing.T) {
	began := time.Now()
	d := newDaemon(t, 0, catalogue(*atOnce))
	for i := range *atOnce {
		registered(t, d, fmt.Sprint("l", i))
	}
	t.Logf("%d launched plugins registered after %v: %v", *atOnce, time.Since(began).Round(time.Millisecond), use(t, d))
	if n := running(t); n != *atOnce {
		t.Errorf("there are %d processes, want %d", n, *atOnce)
	}
	launched, err := d.Client.ListLaunched(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range launched {
		if l.State != "running" || l.Restarts != 0 {
			t.Errorf("%s is %s after %d restarts: %s", l.Name, l.State, l.Restarts, l.LastError)
		}
	}
	began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.Stop(ctx); err != nil {
		t.Error(err)
	}
	t.Logf("all ended within %v", time.Since(began).Round(time.Millisecond))
	if n := running(t); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}
