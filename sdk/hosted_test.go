//go:build linux

package sdk_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/sock"
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
		{role{Type: "Greeter", Name: "hello", Version: "1", Again: true}, pipeline.Socket("again.sock"), ""},
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

// TestSocketOfHost: a plugin serves on the socket that its host has made, as its user, is the peer of those who connect to it, and leaves
// nothing.
func TestSocketOfHost(t *testing.T) {
	users := []string{""}
	if os.Geteuid() == 0 {
		users = append(users, "12345")
	}
	for _, user := range users {
		t.Run("user"+user, func(t *testing.T) { serveOnSocketOfHost(t, user) })
	}
}

func serveOnSocketOfHost(t *testing.T, user string) {
	var h host.Host
	if err := h.Initialize(plugin.Config{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close(t.Context())
	text, err := json.Marshal(role{Type: "Greeter", Name: "hello", Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "p.1", "plugin.sock")
	spec := host.Spec{Args: []string{os.Args[0]}, Dir: "/", Env: append(os.Environ(), roleEnv+"="+string(text)), PluginSocket: path}
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	spec.SHA256 = fmt.Sprintf("%x", sha256.Sum256(program)) // a copy, which another user may execute
	if spec.User, spec.Group = user, user; user == "" {
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p, err := h.Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(filepath.Dir(path), ".plugin.sock.made")
	eventually(t, "it serves", func() bool { _, err := os.Lstat(path); return err == nil })
	if _, err := os.Lstat(made); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", made, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(left) != 1 {
		t.Errorf("it made more than the socket of its host: %q", left)
	}
	conn, err := sock.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := sock.PeerOf(conn)
	_ = conn.Close()
	info, statErr := sock.Stat(path)
	want := uint32(os.Geteuid())
	if user != "" {
		want = 12345
	}
	if err != nil || statErr != nil || peer.PID != p.PID() || peer.UID != want || info.UID != want {
		t.Errorf("who answers is %+v, %v, at %+v, %v; want process %d of user %d", peer, err, info, statErr, p.PID(), want)
	}
	if err := p.Terminate(t.Context()); !errors.Is(err, host.ErrTerminated) {
		t.Errorf("the plugin ended with %v, want the exit code 0", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "p.1", "*")); len(left) != 0 {
		t.Errorf("left are %q", left)
	}
}
