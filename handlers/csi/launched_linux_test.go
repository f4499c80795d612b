package csi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	hosting "github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestLaunchedDriverThatIsNotReady: a launched driver may take any time to become ready. It is neither refused nor restarted meanwhile, its
// status says what it waits for, and it is registered when it is ready.
func TestLaunchedDriverThatIsNotReady(t *testing.T) {
	h := newPatientHost(t, 10*time.Millisecond)
	ready := filepath.Join(t.TempDir(), "ready")
	if err := h.rt.Launcher().Set([]launcher.Plugin{{
		Spec: hosting.Spec{Name: "driver", Args: []string{os.Args[0]}, Env: []string{readyEnv + "=" + ready}},
	}}); err != nil {
		t.Fatal(err)
	}
	launched := func() plugin.LaunchStatus { return h.rt.Launcher().Plugins()[0] }
	tried := func(times int) {
		t.Helper()
		eventually(t, "it was asked several times", func() bool {
			plugins := h.rt.Plugins()
			return len(plugins) == 1 && plugins[0].Attempts >= times && strings.Contains(plugins[0].LastError, "it says that it is not ready")
		})
	}
	tried(2)
	before := launched()
	tried(5)
	if s := launched(); s.PID != before.PID || s.PID == 0 || s.Restarts != 0 || s.State != plugin.StateStarting {
		t.Errorf("after five attempts it is %+v, want process %d, which is starting", s, before.PID)
	}
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.await(plugin.EventRegistered)
	eventually(t, "it runs", func() bool { return launched().State == plugin.StateRunning })
	if s := launched(); s.PID != before.PID || s.Restarts != 0 {
		t.Errorf("when it is ready it is %+v, want process %d", s, before.PID)
	}
}
