//go:build linux

package sdk_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk/sdktest"
)

// safeBuffer is a buffer for several writers.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestLaunchedByHost has package host on the other side: the plugin serves where it is told, its log arrives, and it ends when it is asked.
func TestLaunchedByHost(t *testing.T) {
	pipeline := sdktest.NewHost(t, "Greeter")
	var h host.Host
	if err := h.Initialize(plugin.Config{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close(t.Context())
	for _, tc := range []struct {
		role   role
		socket string
		logs   string
	}{
		{role{Type: "Greeter", Name: "hello", Version: "1"}, pipeline.Socket("given.sock"), ""},
		{role{RunOnly: true}, "", `"last words"`},
	} {
		text, err := json.Marshal(tc.role)
		if err != nil {
			t.Fatal(err)
		}
		var log safeBuffer
		ctx := host.WithLogger(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
		p, err := h.Launch(ctx, host.Spec{
			Args: []string{os.Args[0]}, Env: append(os.Environ(), roleEnv+"="+string(text)), PluginSocket: tc.socket,
		})
		if err != nil {
			t.Fatal(err)
		}
		if tc.socket != "" {
			if got := pipeline.Registered("Greeter", "hello"); got.SocketPath != tc.socket {
				t.Errorf("registered is %+v", got)
			}
		} else {
			eventually(t, "the host has the log", func() bool { return strings.Contains(log.String(), "running") })
		}
		if err := p.Terminate(t.Context()); !errors.Is(err, host.ErrTerminated) {
			t.Errorf("the plugin ended with %v, want the exit code 0", err)
		}
		if !strings.Contains(log.String(), tc.logs) {
			t.Errorf("the host's log has no %s:\n%s", tc.logs, log.String())
		}
		if got := strings.Count(log.String(), tc.logs); tc.logs != "" && got > 1 {
			t.Errorf("the host has the record %d times", got)
		}
	}
}
