package goplugin_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// asAnother makes a plugin one of another user. Its program is sealed, so that it need not be where that user can read it.
func asAnother(t *testing.T, p launcher.Plugin) launcher.Plugin {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run a plugin as somebody else")
	}
	content, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(content)
	p.SHA256, p.User, p.Group, p.Dir = hex.EncodeToString(digest[:]), "12345", "23456", "/"
	return p
}

func TestPluginOfAnotherUser(t *testing.T) {
	m := newMachine(t)
	m.set(asAnother(t, m.unit("serve", nil)))
	running := m.running()
	if got, want := m.ask(""), fmt.Sprint(running.PID); got != want {
		t.Errorf("process %s answers, want %s", got, want)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", running.PID))
	if err != nil || !strings.Contains(string(status), "Uid:\t12345\t12345") || !strings.Contains(string(status), "Gid:\t23456\t23456") {
		t.Errorf("it does not run as its user and group: %v", err)
	}
	if err := m.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	m.until("that nothing is left", func() bool {
		left, err := os.ReadDir(filepath.Join(m.dir, ".go-plugin"))
		return err == nil && len(left) == 0
	})
}

// TestSocketOfRootIsNotTheirs: a plugin of another user says that it serves where only root can connect.
func TestSocketOfRootIsNotTheirs(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(t.TempDir(), "root.sock")
	listener, err := sock.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthy := health.NewServer()
	healthy.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	liar := m.unit("liar", func(p *goplugin.Protocol) { p.Config.AutoMTLS = false })
	liar.Env = append(liar.Env, socketEnv+"="+path)
	m.set(asAnother(t, liar))
	m.until("giving up", func() bool { return m.status().State == plugin.StateFailed })
	if got, want := m.status().LastError, fmt.Sprintf("user 0 listens on %s, and the plugin runs as user 12345", path); !strings.Contains(got, want) {
		t.Errorf("the last error is %q, want %q", got, want)
	}
}

// TestEndedPluginOfAnotherUser: a plugin of another user answers for what it announces, whoever serves its registration, and what is at its
// path when it has ended is not the plugin's.
func TestEndedPluginOfAnotherUser(t *testing.T) {
	for _, mtls := range []bool{true, false} {
		t.Run(fmt.Sprintf("AutoMTLS=%t", mtls), func(t *testing.T) {
			m := newMachine(t)
			unit := asAnother(t, m.unit("serve", func(p *goplugin.Protocol) { p.Config.AutoMTLS = mtls }))
			m.set(unit)
			m.running()
			registered := m.Registry().Instances(ptype, "example")
			if len(registered) != 1 || registered[0].Info.Instance == nil || !registered[0].Info.Instance.Account.Known {
				t.Fatalf("registered are %+v", registered)
			}
			if got := registered[0].Info.Instance.Account.UID; got != 12345 {
				t.Errorf("user %d answers for the plugin, want 12345", got)
			}
			endpoint := registered[0].Info.ConnectionInfo.SocketPath
			if err := m.Launcher().Stop("unit"); err != nil {
				t.Fatal(err)
			}
			m.until("that nothing is left of it", func() bool { return m.connections.Client(endpoint) == nil && !isThere(filepath.Dir(endpoint)) })
			if err := os.MkdirAll(filepath.Dir(endpoint), 0o755); err != nil {
				t.Fatal(err)
			}
			listener, err := sock.Listen(endpoint, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			conn, err := unit.Protocol.(*goplugin.Protocol).Dial(t.Context(), endpoint)
			if err == nil {
				t.Errorf("root's service at the path of an ended plugin is reached: %v", conn.Close())
			}
		})
	}
}

// TestTCPOfAnotherUser: nobody can tell whose process listens at an address of TCP.
func TestTCPOfAnotherUser(t *testing.T) {
	m := newMachine(t)
	m.set(asAnother(t, m.unit("bare", func(p *goplugin.Protocol) { p.Config.AutoMTLS = false })))
	m.until("giving up", func() bool { return m.status().State == plugin.StateFailed })
	if got, want := m.status().LastError, "nobody can tell whose process listens on tcp address 127.0.0.1:"; !strings.Contains(got, want) {
		t.Errorf("the last error is %q, want %q", got, want)
	}
}

// TestSocketOfAnotherPluginIsNotTheirs: a plugin says that it serves where another one of the same user does.
func TestSocketOfAnotherPluginIsNotTheirs(t *testing.T) {
	other := newMachine(t)
	other.set(asAnother(t, other.unit("serve", nil)))
	running := other.running()
	sockets, err := filepath.Glob(filepath.Join(other.dir, ".go-plugin", "*", "plugin*"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("the other plugin has the sockets %q, %v", sockets, err)
	}
	m := newMachine(t)
	liar := m.unit("liar", func(p *goplugin.Protocol) { p.Config.AutoMTLS, p.Connections = false, other.connections })
	liar.Env = append(liar.Env, socketEnv+"="+sockets[0])
	m.set(asAnother(t, liar))
	m.until("giving up", func() bool { return m.status().State == plugin.StateFailed })
	if got, want := m.status().LastError, fmt.Sprintf("process %d of user 12345 serves at %s", running.PID, sockets[0]); !strings.Contains(got, want) {
		t.Errorf("the last error is %q, want %q", got, want)
	}
	m.until("that nothing is left", func() bool {
		left, err := os.ReadDir(filepath.Join(m.dir, ".go-plugin"))
		return err == nil && len(left) == 0
	})
	if other.connections.Client(sockets[0]) == nil {
		t.Error("the other plugin cannot be reached any more")
	}
}
