package launcher_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// modeEnv makes the test binary a plugin that behaves as its value says.
const modeEnv = "PATCHBAY_LAUNCHER_TEST"

func TestMain(m *testing.M) {
	switch mode := os.Getenv(modeEnv); mode {
	case "":
		leaktest.Main(m)
	case "crash":
		fmt.Fprintln(os.Stderr, "the flux is empty")
		os.Exit(3)
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("deaf")
		select {}
	default:
		play(mode)
	}
}

// play is a plugin that heeds the end of its standard input, and may serve until then; or that serves and is killed at once.
func play(mode string) {
	line, err := handshake.Read(os.Stdin)
	if err == nil && mode != "sleep" {
		var l net.Listener
		if l, err = net.Listen("unix", line.PluginSocket); err == nil {
			go func() { _ = grpc.NewServer().Serve(l) }()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if mode == "die" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// fixture is a launcher whose plugins are registered when their sockets are there, if registered does not say otherwise.
type fixture struct {
	*launcher.Launcher
	t    *testing.T
	host *host.Host
	dir  string

	mu       sync.Mutex // guards what follows
	register func(ctx context.Context, socket string, refused func(error)) error
	events   []plugin.Event
}

// patience is how long anything may take on a slow machine.
const patience = 2 * time.Minute

// newFixture returns a launcher that is closed when the test ends. The options change what it works with, before it is made.
func newFixture(t *testing.T, options ...func(*fixture, *launcher.Config)) *fixture {
	t.Helper()
	t.Parallel()
	f := &fixture{t: t, host: &host.Host{}, dir: t.TempDir(), register: awaitSocket}
	cfg := launcher.Config{
		Host: f.host, Dir: f.dir,
		Registrations: registrations(func(ctx context.Context, socket string, refused func(error)) error {
			f.mu.Lock()
			register := f.register
			f.mu.Unlock()
			return register(ctx, socket, refused)
		}),
		Observe: func(e plugin.Event) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, e)
		},
	}
	for _, option := range options {
		option(f, &cfg)
	}
	if err := f.host.Initialize(plugin.Config{}); err != nil {
		t.Fatal(err)
	}
	f.Launcher = launcher.New(cfg)
	t.Cleanup(func() {
		f.Close()
		f.host.Close(context.Background())
	})
	return f
}

// registered says how plugins are registered from now on.
func (f *fixture) registered(how func(ctx context.Context, socket string, refused func(error)) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.register = how
}

// surviving has plugins survive.
func surviving(state string) func(*fixture, *launcher.Config) {
	return func(f *fixture, _ *launcher.Config) { f.host.StateDir = state }
}

// registrations is a [launcher.Registrations] that waits as the function does, and knows nothing of earlier registrations.
type registrations func(ctx context.Context, socket string, refused func(error)) error

func (r registrations) AwaitRegistered(ctx context.Context, socket string, refused func(error)) error {
	return r(ctx, socket, refused)
}

func (registrations) Announced(string) (plugin.Info, bool) { return plugin.Info{}, false }

// tick is how often a test looks that nobody tells: of sockets, files and states that are no event.
const tick = 5 * time.Millisecond

func awaitSocket(ctx context.Context, socket string, _ func(error)) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		if _, err := os.Lstat(socket); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// never is of a plugin that nobody registers. It tells of each that asks.
func never(asked chan<- string) func(ctx context.Context, socket string, refused func(error)) error {
	return func(ctx context.Context, socket string, _ func(error)) error {
		asked <- socket
		<-ctx.Done()
		return ctx.Err()
	}
}

// self is the test binary as a plugin, which is its name.
func self(mode string) launcher.Plugin {
	return launcher.Plugin{
		Spec:     host.Spec{Name: mode, Args: []string{os.Args[0]}, Env: []string{modeEnv + "=" + mode, "GORACE=atexit_sleep_ms=0"}},
		NoSocket: mode != "serve" && mode != "die",
		Restart: plugin.RestartPolicy{
			Policy: plugin.RestartOnFailure, Backoff: plugin.Backoff{Min: time.Millisecond, Max: time.Millisecond}, Limit: 2,
		},
	}
}

func manual(p launcher.Plugin) launcher.Plugin {
	p.Manual = true
	return p
}

func (f *fixture) set(plugins ...launcher.Plugin) {
	f.t.Helper()
	f.must(f.Set(plugins))
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) status(name string) plugin.LaunchStatus {
	for _, s := range f.Plugins() {
		if s.Name == name {
			return s
		}
	}
	return plugin.LaunchStatus{}
}

// until waits for what nobody tells.
func (f *fixture) until(what string, holds func() bool) {
	f.t.Helper()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	timeout := time.After(patience)
	for !holds() {
		select {
		case <-timeout:
			f.t.Fatalf("%s did not come about: %+v after %+v", what, f.Plugins(), f.told(""))
		case <-ticker.C:
		}
	}
}

// in waits until a plugin is in a state.
func (f *fixture) in(name string, state plugin.State) plugin.LaunchStatus {
	f.t.Helper()
	f.until(name+" "+string(state), func() bool { return f.status(name).State == state })
	return f.status(name)
}

// told returns the kinds of the events of a plugin, without a name of all.
func (f *fixture) told(name string) (kinds []plugin.EventKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if name == "" || e.Name == name {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

// all returns the events of all plugins.
func (f *fixture) all() []plugin.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// aside runs what may block, and returns what happens to it.
func aside(do func() error) <-chan error {
	outcome := make(chan error, 1)
	go func() { outcome <- do() }()
	return outcome
}

// take waits for what must come.
func take[T any](t *testing.T, what string, from <-chan T) (taken T) {
	t.Helper()
	select {
	case taken = <-from:
	case <-time.After(patience):
		t.Fatalf("%s did not come about", what)
	}
	return taken
}

// alive says whether a process is there.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// sockets are what is in the plugin directory.
func (f *fixture) sockets() []string {
	found, _ := filepath.Glob(filepath.Join(f.dir, "*"))
	claim := filepath.Join(f.dir, ".launcher.lock") // the launcher's own
	return slices.DeleteFunc(found, func(path string) bool { return path == claim })
}

// newSurvivorHost returns a host for what survives in a directory, which the caller closes.
func newSurvivorHost(t *testing.T, state string) *host.Host {
	t.Helper()
	h := &host.Host{StateDir: state}
	if err := h.Initialize(plugin.Config{}); err != nil {
		t.Fatal(err)
	}
	return h
}
