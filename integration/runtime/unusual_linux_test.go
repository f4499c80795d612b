package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// curt is a plugin that only says who it is.
type curt struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

func (c curt) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return c.info, nil
}

// serveCurt serves a plugin without NotifyRegistrationStatus until the test ends, or stop is called.
func serveCurt(t *testing.T, path string, info *registerapi.PluginInfo) (stop func()) {
	t.Helper()
	listener, err := sock.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, curt{info: info})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestPluginThatCannotBeTold(t *testing.T) {
	h := newHost(t)
	serveCurt(t, filepath.Join(h.dir, "a.sock"), &registerapi.PluginInfo{Type: "T", Name: "a", SupportedVersions: []string{"v1"}})
	h.await(plugin.EventRegistered, "a")
	if s := h.rt.Plugins(); len(s) != 1 || s[0].State != plugin.StateRegistered || s[0].LastError != "" {
		t.Errorf("it is %+v", s)
	}
}

func TestRelativeEndpointIsRefused(t *testing.T) {
	h := newHost(t)
	serveCurt(t, filepath.Join(h.dir, "a.sock"), &registerapi.PluginInfo{
		Type: "T", Name: "a", Endpoint: "api.sock", SupportedVersions: []string{"v1"},
	})
	const want = `the plugin announces the endpoint "api.sock"; it must be an absolute path`
	for e := range h.events {
		if e.Kind == plugin.EventRegistered {
			t.Fatalf("it was registered: %+v", e)
		}
		if strings.Contains(e.Message, want) {
			return
		}
	}
}

// TestFirstSeenBeforeRegistered: an instance that a restart of the host finds again was seen before it was registered.
func TestFirstSeenBeforeRegistered(t *testing.T) {
	h := newHost(t)
	serveCurt(t, filepath.Join(h.dir, "a.sock"), &registerapi.PluginInfo{Type: "T", Name: "a", SupportedVersions: []string{"v1"}})
	h.await(plugin.EventRegistered, "a")
	h.end()
	h.start()
	h.await(plugin.EventRegistered, "a")
	s := h.rt.Plugins()
	if len(s) != 1 || s[0].FirstSeen.IsZero() || s[0].FirstSeen.After(s[0].RegisteredAt) {
		t.Errorf("it is said to be seen first later than it was registered: %+v", s)
	}
}

// TestEachEventIsOneLine compares the log of a Runtime with its events.
func TestEachEventIsOneLine(t *testing.T) {
	var log bytes.Buffer
	h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db"), logger: slog.New(slog.NewTextHandler(&log, nil))}
	h.start()
	defer func() { h.end() }()
	stop := serveCurt(t, filepath.Join(h.dir, "a.sock"), &registerapi.PluginInfo{Type: "T", Name: "a", SupportedVersions: []string{"v1"}})
	h.await(plugin.EventRegistered, "a")
	serveCurt(t, filepath.Join(h.dir, "b.sock"), &registerapi.PluginInfo{Type: "Other", Name: "b", SupportedVersions: []string{"v1"}})
	h.await(plugin.EventRefused, "b")
	stop()
	h.await(plugin.EventDeregistered, "a")
	events := h.rt.LastEvents(100)
	h.end()
	var told []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, " event=") {
			told = append(told, line)
		}
	}
	if len(told) < len(events) {
		t.Fatalf("%d events and %d lines:\n%s", len(events), len(told), strings.Join(told, ""))
	}
	for i, e := range events {
		level := "INFO"
		if e.Kind == plugin.EventRefused || e.Kind == plugin.EventUnreachable {
			level = "WARN"
		}
		want := fmt.Sprintf(`level=%s msg="plugin %s" event=%s type=%s plugin=%s`, level, e.Kind, e.Kind, e.Type, e.Name)
		if !strings.Contains(told[i], want) || !strings.Contains(told[i], " reason=") {
			t.Errorf("event %d has the line %swant %s", i, told[i], want)
		}
	}
}

// someone is the number of a user who is neither root nor the one of the tests.
const someone = 54321

// foreignPlugin starts a host that trusts someone, and has him register a plugin with a socket of root's as its endpoint. Before that,
// prepare may change the endpoint.
func foreignPlugin(t *testing.T, policy trust.Policy, prepare func(endpoint string) error) (h *host, endpoint string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to others")
	}
	h = &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db"), trust: policy}
	h.start()
	t.Cleanup(func() { h.end() })
	endpoint = filepath.Join(t.TempDir(), "root-only.sock")
	serveCurt(t, endpoint, &registerapi.PluginInfo{Type: "Root", Name: "secret", SupportedVersions: []string{"v1"}})
	if err := prepare(endpoint); err != nil {
		t.Fatal(err)
	}
	hidden := filepath.Join(h.dir, ".a.sock")
	serveCurt(t, hidden, &registerapi.PluginInfo{Type: "T", Name: "a", Endpoint: endpoint, SupportedVersions: []string{"v1"}})
	if err := errors.Join(os.Chown(hidden, someone, someone), os.Rename(hidden, filepath.Join(h.dir, "a.sock"))); err != nil {
		t.Fatal(err)
	}
	return h, endpoint
}

// callEndpoint calls what the plugin offers at its endpoint.
func callEndpoint(t *testing.T, h *host) error {
	t.Helper()
	conn, err := h.rt.Registry().Conn(t.Context(), "T", "a")
	if err != nil {
		return err
	}
	_, err = registerapi.NewRegistrationClient(conn).GetInfo(t.Context(), &registerapi.InfoRequest{})
	return err
}

func TestEndpointOfAnotherUserIsRefused(t *testing.T) {
	h, endpoint := foreignPlugin(t, trust.Policy{Owners: trust.Accounts{Users: []string{"54321"}}}, func(string) error { return nil })
	want := fmt.Sprintf("the endpoint %s is user 0's, and the plugin that announces it is user 54321's", endpoint)
	if e := h.await(plugin.EventRefused, "a"); !strings.Contains(e.Message, want) {
		t.Errorf("it is refused with %q, want %q", e.Message, want)
	}
	if err := callEndpoint(t, h); err == nil {
		t.Error("root's socket was called")
	}
}

func TestLinkAsEndpointIsRefused(t *testing.T) {
	h, _ := foreignPlugin(t, trust.Policy{Owners: trust.Accounts{Users: []string{"54321"}}}, func(endpoint string) error {
		return errors.Join(os.Rename(endpoint, endpoint+".real"), os.Symlink(endpoint+".real", endpoint), os.Lchown(endpoint, someone, someone))
	})
	if e := h.await(plugin.EventRefused, "a"); !strings.Contains(e.Message, "is a symbolic link") {
		t.Errorf("it is refused with %q", e.Message)
	}
}

// TestEndpointIsJudgedAtEachConnect: when it was announced the endpoint was the plugin's user's, and another user listens on it.
func TestEndpointIsJudgedAtEachConnect(t *testing.T) {
	owned := func(endpoint string) error { return os.Chown(endpoint, someone, someone) }
	h, endpoint := foreignPlugin(t, trust.Policy{Owners: trust.Accounts{Users: []string{"54321"}}}, owned)
	h.await(plugin.EventRegistered, "a")
	want := fmt.Sprintf("the endpoint %s is user 0's", endpoint)
	if err := callEndpoint(t, h); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the call ended with %v, want %q", err, want)
	}
}

func TestEndpointOfAnotherUserIsAllowed(t *testing.T) {
	h, _ := foreignPlugin(t, trust.Policy{Types: map[string]trust.Type{"T": {Users: []string{"54321"}, Endpoints: []string{"0"}}}},
		func(string) error { return nil })
	h.await(plugin.EventRegistered, "a")
	if err := callEndpoint(t, h); err != nil {
		t.Error(err)
	}
}

// TestRelativePluginDir: a launched plugin runs, is listed once and can be replaced, also if the plugin directory is named from the working
// directory.
func TestRelativePluginDir(t *testing.T) {
	t.Chdir(t.TempDir())
	h := &host{t: t, dir: "plugins", state: "state.db"}
	h.start()
	t.Cleanup(func() { h.end() })
	h.set(launchable("serve"))
	h.running("registration")
	if s := h.rt.Plugins(); len(s) != 1 || s[0].State != plugin.StateRegistered || s[0].Source != plugin.SourceLaunched {
		t.Fatalf("plugins are %+v, want one that is launched and registered", s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := h.rt.Launcher().Restart(ctx, "unit"); err != nil {
		t.Error(err)
	}
}

// TestOwnSocketReplacedByLink: a plugin that is reached at its registration socket, and puts a link to another user's socket in its place, has
// nobody called there, however late the removal of its own is seen.
func TestOwnSocketReplacedByLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to others")
	}
	h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db"),
		trust: trust.Policy{Owners: trust.Accounts{Users: []string{"54321"}}}}
	h.start()
	t.Cleanup(func() { h.end() })
	secret := filepath.Join(t.TempDir(), "root-only.sock")
	serveCurt(t, secret, &registerapi.PluginInfo{Type: "Root", Name: "secret", SupportedVersions: []string{"v1"}})
	hidden, path := filepath.Join(h.dir, ".a.sock"), filepath.Join(h.dir, "a.sock")
	serveCurt(t, hidden, &registerapi.PluginInfo{Type: "T", Name: "a", SupportedVersions: []string{"v1"}})
	if err := errors.Join(os.Chown(hidden, someone, someone), os.Rename(hidden, path)); err != nil {
		t.Fatal(err)
	}
	registered := h.await(plugin.EventRegistered, "a")
	if err := callEndpoint(t, h); err != nil {
		t.Errorf("root listens for the plugin, and the call ended with %v", err)
	}
	// The registry is told of the link as if nobody had seen the change yet.
	if err := errors.Join(os.Remove(path), os.Symlink(secret, path), os.Lchown(path, someone, someone)); err != nil {
		t.Fatal(err)
	}
	h.await(plugin.EventDeregistered, "a")
	info := &dynamicplugins.PluginInfo{Type: "T", Name: "late", AllocID: registered.Instance + "-late",
		Instance:       &plugin.Instance{Account: plugin.Account{UID: someone, GID: someone, Known: true}, SocketPath: path},
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: path}}
	if err := h.rt.Registry().RegisterPlugin(info); err != nil {
		t.Fatal(err)
	}
	conn, err := h.rt.Registry().Conn(t.Context(), "T", "late")
	if err != nil {
		t.Fatal(err)
	}
	answer, err := registerapi.NewRegistrationClient(conn).GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err == nil || !strings.Contains(err.Error(), "is user 0's") {
		t.Errorf("the call got %v, %v", answer, err)
	}
}
