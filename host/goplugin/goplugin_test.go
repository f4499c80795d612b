package goplugin_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	library "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// patience bounds every wait. It says nothing about how long things take.
const patience = 2 * time.Minute

const ptype = "Example"

// machine is a Runtime that launches plugins of go-plugin.
type machine struct {
	*patchbay.Runtime
	t           *testing.T
	dir         string
	connections *goplugin.Connections
	stop        func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &machine{t: t, dir: dir, connections: &goplugin.Connections{}}
	m.Runtime, err = patchbay.New(patchbay.Config{
		PluginDirs: []string{dir},
		RegistryOptions: []dynamicplugins.Option{
			dynamicplugins.WithConnections(m.connections),
			dynamicplugins.WithConnDispenser(ptype, func(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
				return v1beta1.NewExampleClient(conn), nil
			}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.AddHandler(ptype, patchbay.AcceptHandler())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	m.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		m.stop = func() {}
	}
	t.Cleanup(func() { m.stop() })
	return m
}

// unit is the test binary as a plugin of go-plugin.
func (m *machine) unit(mode string, change func(*goplugin.Protocol)) launcher.Plugin {
	p := &goplugin.Protocol{
		Type: ptype, Name: "example", ProtocolVersions: []int{2, 3}, Connections: m.connections,
		Config: &library.ClientConfig{HandshakeConfig: cookie, AutoMTLS: true},
	}
	if change != nil {
		change(p)
	}
	return launcher.Plugin{
		Spec: host.Spec{
			Name: "unit", Args: []string{os.Args[0]},
			Env: []string{modeEnv + "=" + mode, socketEnv + "=/nonexistent/socket", "GORACE=atexit_sleep_ms=0"},
		},
		Protocol: p,
		Restart:  plugin.RestartPolicy{Policy: plugin.RestartAlways, Backoff: plugin.Backoff{Min: 10 * time.Millisecond, Max: 10 * time.Millisecond}, Limit: 2},
	}
}

func (m *machine) set(plugins ...launcher.Plugin) {
	m.t.Helper()
	if err := m.Launcher().Set(plugins); err != nil && !errors.Is(err, launcher.ErrProgram) {
		m.t.Fatal(err)
	}
}

func (m *machine) status() plugin.LaunchStatus {
	all := m.Launcher().Plugins()
	if len(all) != 1 {
		return plugin.LaunchStatus{}
	}
	return all[0]
}

// until waits until a condition holds, which may change with each event.
func (m *machine) until(what string, holds func() bool) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	events := m.Events(ctx, 0)
	for !holds() {
		tick := time.NewTimer(20 * time.Millisecond) // not every change of a launched plugin is an event
		select {
		case _, open := <-events:
			if !open {
				m.t.Fatalf("%s did not come about: %+v %+v", what, m.status(), m.Plugins())
			}
		case <-tick.C:
		}
		tick.Stop()
	}
}

func (m *machine) running() plugin.LaunchStatus {
	m.t.Helper()
	m.until("that it runs", func() bool { s := m.status(); return s.State == plugin.StateRunning && s.ServingStatus == "serving" })
	return m.status()
}

// ask calls the plugin through the registry.
func (m *machine) ask(request string) string {
	m.t.Helper()
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](m.Registry(), ptype, "example")
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	answer, err := client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{Request: request})
	if err != nil {
		m.t.Fatal(err)
	}
	return answer.GetError()
}

func (m *machine) logged(is func(plugin.LogRecord) bool) bool {
	log, err := m.Launcher().Log("unit")
	return err == nil && slices.ContainsFunc(log.Tail(0), is)
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func TestPluginTakesTheOneRoad(t *testing.T) {
	for _, mtls := range []bool{true, false} {
		t.Run(fmt.Sprintf("AutoMTLS=%t", mtls), func(t *testing.T) {
			t.Setenv("PATCHBAY_HANDSHAKE", "stdin")
			m := newMachine(t)
			unit := m.unit("serve", func(p *goplugin.Protocol) { p.Config.AutoMTLS = mtls })
			m.set(unit)
			s := m.running()
			i := slices.IndexFunc(m.Plugins(), func(p plugin.Status) bool { return p.Name == "example" })
			if i < 0 || len(m.Plugins()) != 1 {
				t.Fatalf("plugins are %+v, want the launched one and no other", m.Plugins())
			}
			p := m.Plugins()[i]
			if p.Source != plugin.SourceLaunched || p.State != plugin.StateRegistered || p.SocketPath != s.Socket ||
				p.Type != ptype || !slices.Equal(p.Versions, []string{"3"}) || p.Endpoint == s.Socket {
				t.Errorf("the plugin is %+v, want it registered and launched, at %s, with version 3", p, s.Socket)
			}
			if got := m.ask(""); got != fmt.Sprint(s.PID) {
				t.Errorf("process %s answers, want %d", got, s.PID)
			}
			if got := m.ask("PATCHBAY_HANDSHAKE"); got != "" {
				t.Errorf("a handshake is announced: %q", got)
			}
			if err := callInTheClear(t, p.Endpoint); (err == nil) == mtls {
				t.Errorf("a stranger's call in the clear: %v", err)
			}
			m.until("the log record on standard error", func() bool {
				return m.logged(func(r plugin.LogRecord) bool {
					return r.Level == slog.LevelWarn && r.Message == "the well runs low" && r.Source == "stderr"
				})
			})
			m.until("what was printed later", func() bool {
				return m.logged(func(r plugin.LogRecord) bool {
					return r.Message == "asked PATCHBAY_HANDSHAKE" && r.Source == "stdout"
				})
			})

			if err := m.Launcher().Stop("unit"); err != nil {
				t.Fatal(err)
			}
			if isThere(s.Socket) || isThere(p.Endpoint) {
				t.Errorf("after Stop a socket is left: %t %t", isThere(s.Socket), isThere(p.Endpoint))
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			terminated := false // as a plugin that was asked to end and had the time
			for e := range m.Events(ctx, 100) {
				if terminated = e.Kind == plugin.EventTerminated && e.Message == host.ErrTerminated.Error(); terminated {
					break
				}
			}
			if !terminated {
				t.Error("no event says that the plugin terminated as it was asked to")
			}
			m.until("deregistration", func() bool { return len(m.Registry().Instances(ptype, "example")) == 0 })
		})
	}
}

func TestPluginOverTCP(t *testing.T) {
	m := newMachine(t)
	m.set(m.unit("bare", func(p *goplugin.Protocol) { p.Config.AutoMTLS = false }))
	s := m.running()
	if got := m.ask(""); got != fmt.Sprint(s.PID) {
		t.Errorf("process %s answers, want %d", got, s.PID)
	}
	if got := m.Plugins()[0].Endpoint; !filepath.IsAbs(got) || !strings.HasPrefix(filepath.Base(got), "127.0.0.1:") {
		t.Errorf("the endpoint is %s", got)
	}
}

// TestLargeAnswer: an answer may be larger than gRPC allows by default, as with the library's own host.
func TestLargeAnswer(t *testing.T) {
	m := newMachine(t)
	m.set(m.unit("serve", nil))
	m.running()
	if got := m.ask("large"); len(got) != largeAnswer {
		t.Errorf("the answer has %d bytes, want %d", len(got), largeAnswer)
	}
}

// TestRemovedEndpoint: a plugin whose socket a cleaner removes before the first call is called as before.
func TestRemovedEndpoint(t *testing.T) {
	for name, upgrade := range map[string]plugin.Upgrade{"side by side": plugin.UpgradeSideBySide, "handover": plugin.UpgradeHandover} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			unit := m.unit("serve", nil)
			unit.Upgrade = upgrade
			m.set(unit)
			s := m.running()
			dir := filepath.Join(m.dir, map[plugin.Upgrade]string{plugin.UpgradeHandover: ".launched"}[upgrade])
			sockets, err := filepath.Glob(filepath.Join(dir, ".go-plugin", "*", "plugin*"))
			if err != nil || len(sockets) != 1 {
				t.Fatalf("the plugin has the sockets %q, %v", sockets, err)
			}
			if err := os.Remove(sockets[0]); err != nil {
				t.Fatal(err)
			}
			if got := m.ask(""); got != fmt.Sprint(s.PID) {
				t.Errorf("process %s answers, want %d", got, s.PID)
			}
		})
	}
}

// TestNoConnections: a plugin that could not be reached is not launched.
func TestNoConnections(t *testing.T) {
	m := newMachine(t)
	unit := m.unit("serve", func(p *goplugin.Protocol) { p.Connections = nil })
	unit.Manual = true
	m.set(unit)
	if err := m.Launcher().Start("unit"); err == nil || !strings.Contains(err.Error(), "it has no Connections") {
		t.Errorf("got %v, want that it has no Connections", err)
	}
}

func TestProgramThatIsNotThere(t *testing.T) {
	m := newMachine(t)
	unit := m.unit("serve", nil)
	unit.Args = []string{filepath.Join(m.dir, "nonsuch")}
	unit.Manual = true
	m.set(unit)
	if err := m.Launcher().Start("unit"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v, want that there is no such file", err)
	}
	if left, err := os.ReadDir(filepath.Join(m.dir, ".go-plugin")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// callInTheClear calls a plugin as somebody who has no certificate.
func callInTheClear(t *testing.T, endpoint string) error {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = v1beta1.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
	return err
}

func TestCrashedPluginIsRegisteredAgain(t *testing.T) {
	m := newMachine(t)
	m.set(m.unit("serve", nil))
	first := m.running()
	process, err := os.FindProcess(first.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	m.until("another life", func() bool { s := m.status(); return s.State == plugin.StateRunning && s.PID != first.PID })
	m.until("that only the new one is registered", func() bool { return len(m.Registry().Instances(ptype, "example")) == 1 })
	if got := m.ask(""); got != fmt.Sprint(m.status().PID) {
		t.Errorf("process %s answers, want %d", got, m.status().PID)
	}
	if isThere(first.Socket) {
		t.Error("the socket of the killed process is still there")
	}
	m.until("one private directory", func() bool {
		left, err := os.ReadDir(filepath.Join(m.dir, ".go-plugin"))
		return err == nil && len(left) == 1
	})
}

func TestReplacement(t *testing.T) {
	m := newMachine(t)
	m.set(m.unit("serve", nil))
	first := m.running()
	m.set(m.unit("serve", nil))
	if s := m.status(); s.PID != first.PID {
		t.Fatalf("the same configuration replaced process %d by %d", first.PID, s.PID)
	}
	m.set(m.unit("serve", func(p *goplugin.Protocol) { p.ProtocolVersions = []int{4} }))
	m.until("replacement", func() bool { s := m.status(); return s.State == plugin.StateRunning && s.PID != first.PID })
	m.until("that the old one is gone", func() bool { return len(m.Registry().Instances(ptype, "example")) == 1 })
	if got := m.ask(""); got != fmt.Sprint(m.status().PID) {
		t.Errorf("process %s answers, want %d", got, m.status().PID)
	}
	if p := m.Plugins(); len(p) != 1 || !slices.Equal(p[0].Versions, []string{"4"}) {
		t.Errorf("plugins are %+v, want one of version 4", p)
	}
}

// early is what is said of text that a plugin prints too early.
const early = " on standard output before its handshake; plugins of go-plugin must print nothing there"

// TestEarlyOutputIsLogged: text before the handshake is in the log, where the error leads to.
func TestEarlyOutputIsLogged(t *testing.T) {
	for mode, want := range map[string]string{"babble": "what a lovely\tday", "loading": "loading: 1|"} {
		m := newMachine(t)
		m.set(m.unit(mode, nil))
		m.until("giving up", func() bool { return m.status().State == plugin.StateFailed })
		log, err := m.Launcher().Log("unit")
		if err != nil {
			t.Fatal(err)
		}
		m.until("the text in the log", func() bool {
			for _, r := range log.Tail(0) {
				if r.Source == "stdout" && strings.HasPrefix(r.Message, want) {
					return true
				}
			}
			return false
		})
	}
}

func TestLaunchFailures(t *testing.T) {
	for name, c := range map[string]struct {
		mode   string
		change func(*goplugin.Protocol)
		want   []string
	}{
		"wrong cookie": {"serve", func(p *goplugin.Protocol) { p.Config.MagicCookieValue = "tea" },
			[]string{"exit status 1", "magic cookie than " + cookieKey, "This binary is a plugin"}},
		"wrong version":    {"serve", func(p *goplugin.Protocol) { p.ProtocolVersions = []int{5, 9} }, []string{"incompatible API version", "Plugin version: 3"}},
		"no handshake":     {"babble", nil, []string{`printed "what a lovely\tday\n"` + early}},
		"an empty line":    {"blank", nil, []string{`printed "\n"` + early}},
		"text before it":   {"loading", nil, []string{`printed "loading: 1|3|unix|`, early}},
		"no end of a line": {"flood", nil, []string{`printed "\x1b[31m`, "…" + early}},
		"nobody serves":    {"liar", nil, []string{"does not answer there"}},
		"no AutoMTLS":      {"old", nil, []string{"does not answer there", "needs it switched off"}},
		"net/rpc":          {"netrpc", nil, []string{`unsupported plugin protocol "netrpc"`}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.set(m.unit(c.mode, c.change))
			m.until("giving up", func() bool { return m.status().State == plugin.StateFailed })
			for _, want := range c.want {
				if got := m.status().LastError; !strings.Contains(got, want) || strings.Contains(got, "\n") {
					t.Errorf("the last error is %q, want one line with %q", got, want)
				}
			}
			if got := len(m.Host().Plugins()); got != 0 {
				t.Errorf("%d processes are left", got)
			}
			m.until("that nothing is left", func() bool {
				left, err := os.ReadDir(filepath.Join(m.dir, ".go-plugin"))
				return err == nil && len(left) == 0
			})
		})
	}
}

// TestStopWhileMeeting ends plugins of which nothing has been heard.
func TestStopWhileMeeting(t *testing.T) {
	for name, end := range map[string]func(*machine) error{
		"stopped": func(m *machine) error { return m.Launcher().Stop("unit") },
		"removed": func(m *machine) error { return m.Launcher().Set(nil) },
		"closed":  func(m *machine) error { m.stop(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.set(m.unit("silent", nil))
			m.until("a process", func() bool { return len(m.Host().Plugins()) == 1 })
			begun := time.Now()
			if err := end(m); err != nil {
				t.Fatal(err)
			}
			m.until("its end", func() bool { return len(m.Host().Plugins()) == 0 })
			if took := time.Since(begun); took > patience {
				t.Errorf("the end took %v", took)
			}
		})
	}
}

func TestHostEndsPlugins(t *testing.T) {
	m := newMachine(t)
	m.set(m.unit("serve", nil))
	s := m.running()
	endpoint := m.Plugins()[0].Endpoint
	m.stop()
	if m.Host().Plugins() != nil || isThere(s.Socket) || isThere(endpoint) {
		t.Errorf("left behind: %v, sockets %t %t", m.Host().Plugins(), isThere(s.Socket), isThere(endpoint))
	}
	left, err := os.ReadDir(filepath.Join(m.dir, ".go-plugin"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
