package runtime_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	hosting "github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/trust"
)

// patience bounds every wait. It says nothing about how long things take.
const patience = 2 * time.Minute

// host is a Runtime with a state file, which can be ended and started again.
type host struct {
	t          *testing.T
	dir, state string
	survivors  string                                              // where launched plugins that survive are remembered; empty for nowhere
	admission  func(*hosting.Host) (plugin.AdmissionPlugin, error) // nil for none
	handler    cache.PluginHandler                                 // nil for one that accepts
	trust      trust.Policy
	// launchedOnly is Config.LaunchedOnly.
	launchedOnly bool
	logger       *slog.Logger // nil for none
	rt           *pluginruntime.Runtime
	events       <-chan plugin.Event
	unread       []plugin.Event // that were passed over by await
	full         atomic.Bool    // nothing can be saved
	end          func()
}

func newHost(t *testing.T) *host {
	h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db")}
	h.start()
	t.Cleanup(func() { h.end() })
	return h
}

func (h *host) start() {
	h.t.Helper()
	store, err := boltstate.Open(h.state)
	if err != nil {
		h.t.Fatal(err)
	}
	h.rt = &pluginruntime.Runtime{
		Watcher:      &pipeline.Watcher{Dirs: []string{h.dir}},
		NewAdmission: h.admission,
		State:        &device{store, &h.full},
		SurvivorDir:  h.survivors,
		Logger:       h.logger,
		TrustPolicy:  h.trust,
		LaunchedOnly: h.launchedOnly,
		RegistryOptions: []dynamicplugins.Option{
			dynamicplugins.WithConnDispenser("T", func(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
				return v1beta1.NewExampleClient(conn), nil
			}),
		},
	}
	if err := h.rt.Open(); err != nil {
		h.t.Fatal(err)
	}
	if h.handler == nil {
		h.handler = patchbay.AcceptHandler()
	}
	h.rt.AddHandler("T", h.handler)
	ctx, cancel := context.WithCancel(context.Background())
	h.events, h.unread = h.rt.Events(ctx, 0), nil
	ended := make(chan error, 1)
	go func() { ended <- h.rt.Run(ctx) }()
	h.end = func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("Run: %v", err)
		}
		if err := store.Close(); err != nil {
			h.t.Errorf("Close: %v", err)
		}
		h.end = func() {}
	}
}

// device is a state file on a device that can be full.
type device struct {
	*boltstate.Store
	full *atomic.Bool
}

func (d *device) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	if d.full.Load() {
		return syscall.ENOSPC
	}
	return d.Store.PutDynamicPluginChange(change)
}

// await waits for an event that no call has returned yet.
func (h *host) await(kind plugin.EventKind, name string) plugin.Event {
	h.t.Helper()
	is := func(e plugin.Event) bool { return e.Kind == kind && e.Name == name }
	if i := slices.IndexFunc(h.unread, is); i >= 0 {
		e := h.unread[i]
		h.unread = slices.Delete(h.unread, i, i+1)
		return e
	}
	deadline := time.After(patience)
	for {
		select {
		case e, ok := <-h.events:
			if !ok {
				h.t.Fatalf("the events ended before %s %s", kind, name)
			}
			if is(e) {
				return e
			}
			h.unread = append(h.unread, e)
		case <-deadline:
			h.t.Fatalf("no event %s %s; plugins: %+v", kind, name, h.rt.Plugins())
		}
	}
}

func (h *host) serve(name, file string) interface{ Stop() error } {
	h.t.Helper()
	p := pluginwatcher.NewTestExamplePlugin(name, "T", filepath.Join(h.dir, file), "v1beta1")
	if err := p.Serve("v1beta1"); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			h.t.Error(err)
		}
	})
	return p
}

func (h *host) call(name string) error {
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](h.rt.Registry(), "T", name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
	return err
}

func TestRuntime(t *testing.T) {
	h := newHost(t)
	if err := h.call("foo"); !errors.Is(err, dynamicplugins.ErrNotFound) {
		t.Errorf("before it appears: %v", err)
	}
	older := h.serve("foo", "old.sock")
	first := h.await("registered", "foo")
	if err := h.call("foo"); err != nil {
		t.Errorf("call: %v", err)
	}
	newer := h.serve("foo", "new.sock")
	second := h.await("registered", "foo")
	if superseded := h.await("superseded", "foo"); superseded.Instance != first.Instance || second.Instance == first.Instance {
		t.Errorf("%s was superseded by %s", superseded.Instance, second.Instance)
	}
	if statuses := h.rt.Plugins(); len(statuses) != 2 || !statuses[0].Current || statuses[1].State != plugin.StateSuperseded {
		t.Errorf("plugins: %+v", statuses)
	}
	if err := newer.Stop(); err != nil {
		t.Error(err)
	}
	if e := h.await("deregistered", "foo"); e.Instance != second.Instance {
		t.Errorf("event %+v", e)
	}
	if err := h.call("foo"); err != nil {
		t.Errorf("the older instance does not take over: %v", err)
	}
	if e := h.await("registered", "foo"); e.Instance != first.Instance {
		t.Errorf("the survivor is another instance: %+v", e)
	}
	if err := older.Stop(); err != nil {
		t.Error(err)
	}
	h.await("deregistered", "foo")
	// It is not dispensed from the moment of the event on; a moment later it is off the disk.
	if err := h.call("foo"); !errors.Is(err, dynamicplugins.ErrNotFound) && !errors.Is(err, dynamicplugins.ErrUnreachable) {
		t.Errorf("after it went: %v", err)
	}
}

func TestRuntimeRemembers(t *testing.T) {
	h := newHost(t)
	h.serve("stays", "stays.sock")
	before := h.await("registered", "stays")
	goes := h.serve("goes", "goes.sock")
	h.await("registered", "goes")
	h.end()
	if err := goes.Stop(); err != nil {
		t.Fatal(err)
	}

	h.start()
	if list := h.rt.Registry().ListPlugins("T"); len(list) != 2 {
		t.Errorf("at once after the restart the registry has %v", list)
	}
	h.await("deregistered", "goes")
	after := h.await("registered", "stays")
	if after.Instance != before.Instance {
		t.Errorf("instance %s became %s over the restart", before.Instance, after.Instance)
	}
	if err := h.call("stays"); err != nil {
		t.Errorf("call: %v", err)
	}
	if s := h.rt.Plugins(); len(s) != 1 || s[0].State != plugin.StateRegistered || s[0].RegisteredAt.After(before.Time) {
		t.Errorf("plugins: %+v", s)
	}
}

// A plugin that died while the host was away is restored, and does not open the gate.
func TestWaitForPluginsDoesNotTrustMemory(t *testing.T) {
	h := newHost(t)
	p := h.serve("a", "a.sock")
	h.await("registered", "a")
	h.end()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	store, err := boltstate.Open(h.state)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rt := &pluginruntime.Runtime{Watcher: &pipeline.Watcher{Dirs: []string{h.dir}}, State: store}
	if err := rt.Open(); err != nil {
		t.Fatal(err)
	}
	if list := rt.Registry().ListPlugins("T"); len(list) != 1 {
		t.Fatalf("restored: %v", list)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := rt.WaitForPlugins(ctx, plugin.Name{Type: "T", Name: "a"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the gate says %v", err)
	}
	rt.Registry().Shutdown()
}

func TestWaitForPlugins(t *testing.T) {
	h := newHost(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		opened <- h.rt.WaitForPlugins(ctx, plugin.Name{Type: "T", Name: "a"}, plugin.Name{Type: "T", Name: "b"})
	}()
	h.serve("a", "a.sock")
	h.await("registered", "a")
	select {
	case err := <-opened:
		t.Fatalf("the gate opened with one of two plugins: %v", err)
	default:
	}
	h.serve("b", "b.sock")
	if err := <-opened; err != nil {
		t.Errorf("the gate stays shut: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	err := h.rt.WaitForPlugins(ended, plugin.Name{Type: "T", Name: "a"}, plugin.Name{Type: "T", Name: "missing"})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "T/missing") || strings.Contains(err.Error(), "T/a") {
		t.Errorf("the gate says %v", err)
	}
}
