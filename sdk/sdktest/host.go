// Package sdktest is a host for the tests of a plugin: the real pipeline of a Patchbay host, in the test's process and with its own
// directory, and next to it the plugin's own main function. A test sees how the plugin registers, what it does when it is refused, when the
// host restarts and when it is stopped, and calls it as a consumer would.
//
//	host := sdktest.NewHost(t, "Greeter")
//	plugin := host.Launch(run) // run is what main calls: func(ctx context.Context) error
//	host.Registered("Greeter", "hello")
//	client := hellopb.NewHelloClient(host.Conn("Greeter", "hello"))
//
// It is not for testing hosts, and starts no processes: use "patchbay verify" to test a plugin as a process.
package sdktest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// patience bounds every wait, after which the test fails.
const patience = 30 * time.Second

// Host is a plugin host. Its methods are safe for concurrent use, except Restart. Methods that wait fail the test after 30 s, so call them
// from the test's goroutine.
type Host struct {
	t     testing.TB
	types []string
	dir   string

	mu       sync.Mutex
	refusal  error
	metadata map[plugin.Pin][]plugin.Metadata
	launched int

	// Set by start:
	runtime *patchbay.Runtime
	stop    func() error
}

// NewHost starts a host with consumers for the given plugin types; it refuses others. It ends with the test, after the plugins that it
// started.
func NewHost(t testing.TB, types ...string) *Host {
	t.Helper()
	const room = 64                                     // for the longest path of a socket in it
	dir, err := os.MkdirTemp(sock.TempDir(room), "sdk") // t.TempDir is too long for sockets
	h := &Host{t: t, types: slices.Clone(types), dir: dir, metadata: map[plugin.Pin][]plugin.Metadata{}}
	h.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h.must(os.Mkdir(filepath.Join(dir, "plugins"), 0o750))
	h.start()
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Errorf("the host ended with: %v", err)
		}
	})
	return h
}

// must ends the test after an error.
func (h *Host) must(err error) {
	if err != nil {
		h.t.Helper()
		h.t.Fatal(err)
	}
}

// Socket returns a path in the host's plugin directory, for a plugin that creates its own socket.
func (h *Host) Socket(name string) string { return filepath.Join(h.dir, "plugins", name) }

// Refuse makes the host refuse plugins with this error from now on; with nil it accepts them again. A registered plugin stays registered.
func (h *Host) Refuse(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refusal = err
}

// Restart stops the host, as an upgrade does, and starts it again with its saved state. Plugins keep running, and launched plugins keep
// their connection to the host.
func (h *Host) Restart() {
	h.t.Helper()
	if err := h.stop(); err != nil {
		h.t.Fatalf("the host ended with: %v", err)
	}
	h.start()
}

// Registered waits until the plugin is registered, and returns its status.
func (h *Host) Registered(pluginType, name string) plugin.Status {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h.must(h.runtime.WaitForPlugins(ctx, plugin.Name{Type: pluginType, Name: name}))
	for _, status := range h.runtime.Plugins() {
		if status.Type == pluginType && status.Name == name && status.Current {
			return status
		}
	}
	return plugin.Status{} // gone already
}

// Deregistered waits until no instance of the plugin is registered.
func (h *Host) Deregistered(pluginType, name string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	events := h.runtime.Registry().PluginsUpdatedCh(ctx, pluginType)
	for {
		if len(h.runtime.Registry().Instances(pluginType, name)) == 0 {
			return
		}
		if _, open := <-events; !open {
			h.t.Fatalf("plugin %s/%s is still registered", pluginType, name)
		}
	}
}

// Conn waits until the plugin is registered and returns a connection to it, as the host's consumers have one: a call goes to the instance
// that is current when it begins. It lives until Restart.
func (h *Host) Conn(pluginType, name string) grpc.ClientConnInterface {
	h.t.Helper()
	h.Registered(pluginType, name)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := h.runtime.Registry().Conn(ctx, pluginType, name)
	h.must(err)
	return conn
}

// SetMetadata sets the metadata of a package instance that launched plugins see, newest first.
func (h *Host) SetMetadata(pin plugin.Pin, entries ...plugin.Metadata) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.metadata[pin] = slices.Clone(entries)
}

func (h *Host) listMetadata(pin plugin.Pin) []plugin.Metadata {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.metadata[pin]
}

// start starts the host and waits until it has found the existing plugins.
func (h *Host) start() {
	h.t.Helper()
	state, err := boltstate.Open(filepath.Join(h.dir, "state.db"))
	h.must(err)
	runtime, err := patchbay.New(patchbay.Config{PluginDirs: []string{filepath.Join(h.dir, "plugins")}, State: state})
	if err != nil {
		h.t.Fatal(errors.Join(err, state.Close()))
	}
	for _, t := range h.types {
		runtime.AddHandler(t, consumer{h})
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- runtime.Run(ctx) }()
	h.runtime, h.stop = runtime, sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-ended, state.Close())
	})
	select {
	case <-runtime.Ready():
	case err := <-ended:
		ended <- err
		h.t.Fatalf("the host does not start: %v", err)
	}
}

// consumer is the handler for all types.
type consumer struct{ h *Host }

func (c consumer) ValidatePlugin(string, string, []string) error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	return c.h.refusal
}

func (consumer) RegisterPlugin(string, string, []string, *time.Duration) error { return nil }

func (consumer) DeRegisterPlugin(string) {}
