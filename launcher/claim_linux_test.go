package launcher_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestSecondLauncher reproduces PAINS 193: a second launcher on the same directory gets an error and disturbs no plugin of the first one,
// and may launch plugins when the first one is closed.
func TestSecondLauncher(t *testing.T) {
	f := newFixture(t)
	h := &host.Host{}
	if err := h.Initialize(plugin.Config{}); err != nil {
		t.Fatal(err)
	}
	second := launcher.New(launcher.Config{Host: h, Dir: f.dir, AwaitRegistered: awaitSocket})
	t.Cleanup(func() {
		second.Close()
		h.Close(context.Background())
	})
	f.set(self("serve"))
	f.in("serve", launcher.StateRunning)
	sockets := f.sockets()
	if err := second.Set([]launcher.Plugin{self("serve")}); !errors.Is(err, sock.ErrInUse) {
		t.Errorf("the second launcher gets %v, want %v", err, sock.ErrInUse)
	}
	if plugins := second.Plugins(); len(plugins) > 0 {
		t.Errorf("it launches %+v", plugins)
	}
	for _, path := range sockets {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("a socket of the first launcher: %v", err)
		}
	}
	f.Close()
	if err := second.Set([]launcher.Plugin{self("serve")}); err != nil {
		t.Errorf("when the first one is closed, the second one gets %v", err)
	}
}
