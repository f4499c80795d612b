package pluginwatcher_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// What plugins of the kubelet are known to do, on real sockets.

// A DRA driver rolls over with two sockets of one name and two endpoints.
func TestRollover(t *testing.T) {
	dir := t.TempDir()
	w := pluginwatcher.NewWatcher(dir, "")
	h := newCalls()
	w.AddHandler("T", h)
	start(t, w)
	older := serve(t, "driver", filepath.Join(dir, "older.sock"))
	h.await(t, "validate driver false", "register driver older.sock")
	awaitStatus(t, older)
	newer := serve(t, "driver", filepath.Join(dir, "newer.sock"))
	h.await(t, "validate driver false", "register driver newer.sock")
	awaitStatus(t, newer)
	stop(t, older)
	awaitOnly(t, w, "driver", filepath.Join(dir, "newer.sock"))
	h.await(t)
	stop(t, newer)
	h.await(t, "deregister driver")
}

// Two registrars with one path replace each other's socket file, again and again.
func TestRegistrarsReplaceEachOther(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "registrar.sock")
	w := pluginwatcher.NewWatcher(dir, "")
	h := newCalls()
	w.AddHandler("T", h)
	start(t, w)
	for i, name := range []string{"one", "two", "one", "two"} {
		awaitStatus(t, serve(t, name, path))
		awaitOnly(t, w, name, path)
		want := []string{"validate " + name + " false", "register " + name + " registrar.sock"}
		if i > 0 {
			want = append(want, "deregister "+map[string]string{"one": "two", "two": "one"}[name])
		}
		h.awaitAnyOrder(t, want...)
	}
}

// A handler that comes late gets the plugins that wait for it at once; one that goes has its plugins deregistered.
func TestHandlersComeAndGo(t *testing.T) {
	dir := t.TempDir()
	w := pluginwatcher.NewWatcher(dir, "")
	start(t, w)
	p := serve(t, "foo", filepath.Join(dir, "foo.sock"))
	if status := awaitStatus(t, p); status.PluginRegistered {
		t.Error("it is told that it is registered")
	}
	h := newCalls()
	w.AddHandler("T", h)
	h.await(t, "validate foo false", "register foo foo.sock")
	if status := awaitStatus(t, p); !status.PluginRegistered {
		t.Errorf("it is told %v", status)
	}
	w.RemoveHandler("T")
	h.await(t, "deregister foo")
}

// One pipeline serves handlers of both kubelet interfaces; the later one is given the timeout that is configured for the plugin.
func TestBothInterfaces(t *testing.T) {
	dir := t.TempDir()
	minute := time.Minute
	w := pluginwatcher.With(&pipeline.Watcher{Dirs: []string{dir}, Registration: reconciler.Config{
		ClientTimeout: func(ptype, name string) *time.Duration {
			if ptype == "T" && name == "slow" {
				return &minute
			}
			return nil
		},
	}})
	later := laterHandler{make(chan *time.Duration, 2)}
	w.Pipeline().AddHandler("T", later)
	start(t, w)
	for name, want := range map[string]time.Duration{"slow": minute, "fast": 0} {
		p := serve(t, name, filepath.Join(dir, name+".sock"))
		awaitStatus(t, p)
		if got := <-later.timeouts; (got == nil) != (want == 0) || got != nil && *got != want {
			t.Errorf("%s has the timeout %v, want %v", name, got, want)
		}
	}
	h := newCalls()
	w.AddHandler("T", h)
	h.awaitAnyOrder(t, "validate slow false", "register slow slow.sock", "validate fast false", "register fast fast.sock")
}

// laterHandler is a handler of the later interface that passes on the timeouts that it is given.
type laterHandler struct{ timeouts chan *time.Duration }

func (laterHandler) ValidatePlugin(string, string, []string) error { return nil }

func (h laterHandler) RegisterPlugin(_, _ string, _ []string, timeout *time.Duration) error {
	h.timeouts <- timeout
	return nil
}

func (laterHandler) DeRegisterPlugin(string) {}

// awaitOnly waits until the plugin on a socket is registered under a name and no other socket is known.
func awaitOnly(t *testing.T, w *pluginwatcher.Watcher, name, path string) {
	t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		plugins, _ := w.Plugins()
		if len(plugins) == 1 && plugins[0].SocketPath == path && plugins[0].Name == name && plugins[0].State == plugin.StateRegistered {
			return
		}
	}
	plugins, _ := w.Plugins()
	t.Fatalf("%s on %s is not alone: %+v", name, path, plugins)
}

// awaitAnyOrder waits for the next calls, which are for different names and so in no certain order.
func (c *calls) awaitAnyOrder(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		got := slices.Sorted(slices.Values(c.got))
		if slices.Equal(got, want) {
			c.got = nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		select {
		case <-c.changed:
		case <-deadline:
			t.Fatalf("calls %q, want %q", got, want)
		}
	}
}
