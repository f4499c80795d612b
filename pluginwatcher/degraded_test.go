package pluginwatcher_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// A plugin directory that is removed and made again, with plugins in it, is right again, and said to be degraded meanwhile.
func TestDirectoryRemovedAndMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	events := make(chan plugin.Event, 100)
	w := pluginwatcher.With(&pipeline.Watcher{Dirs: []string{dir}, Registration: reconciler.Config{
		Observe: func(e plugin.Event) {
			if e.Kind == plugin.EventDegraded || e.Kind == plugin.EventRecovered {
				events <- e
			}
		},
	}})
	h := newCalls()
	w.AddHandler("T", h)
	start(t, w)
	awaitStatus(t, serve(t, "foo", filepath.Join(dir, "foo.sock")))
	h.await(t, "validate foo false", "register foo foo.sock")

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	h.await(t, "deregister foo")
	awaitEvent(t, events, plugin.EventDegraded, dir)
	if c := w.Pipeline().Conditions(); len(c) != 1 || c[0].Path != dir || time.Since(c[0].Since) > patience {
		t.Errorf("conditions: %+v", c)
	}
	serve(t, "bar", filepath.Join(dir, "bar.sock"))
	h.await(t, "validate bar false", "register bar bar.sock")
	awaitEvent(t, events, plugin.EventRecovered, dir)
	if c := w.Pipeline().Conditions(); len(c) != 0 {
		t.Errorf("conditions: %+v", c)
	}
}

func awaitEvent(t *testing.T, events <-chan plugin.Event, kind plugin.EventKind, path string) plugin.Event {
	t.Helper()
	select {
	case e := <-events:
		if e.Kind != kind || !strings.HasPrefix(e.SocketPath, path) || e.Message == "" {
			t.Errorf("event %+v", e)
		}
		return e
	case <-time.After(patience):
		t.Fatalf("no event %s", kind)
		return plugin.Event{}
	}
}

// Beyond a bound there is an event that names it, and the rest goes on.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	events := make(chan plugin.Event, 100)
	w := pluginwatcher.With(&pipeline.Watcher{Dirs: []string{dir}, MaxDepth: 1, MaxSockets: 2, Registration: reconciler.Config{
		Observe: func(e plugin.Event) {
			if e.Kind == plugin.EventDegraded {
				events <- e
			}
		},
	}})
	h := newCalls()
	w.AddHandler("T", h)
	start(t, w)
	serve(t, "deep", filepath.Join(dir, "a", "b", "deep.sock"))
	if e := awaitEvent(t, events, plugin.EventDegraded, dir); !strings.Contains(e.Message, "more than 1 levels") {
		t.Errorf("the event does not name the bound: %s", e.Message)
	}
	serve(t, "foo", filepath.Join(dir, "a", "foo.sock"))
	h.await(t, "validate foo false", "register foo foo.sock")
	serve(t, "bar", filepath.Join(dir, "a", "bar.sock"))
	h.await(t, "validate bar false", "register bar bar.sock")
	serve(t, "third", filepath.Join(dir, "a", "third.sock"))
	if e := awaitEvent(t, events, plugin.EventDegraded, dir); !strings.Contains(e.Message, "more than 2 sockets") {
		t.Errorf("the event does not name the bound: %s", e.Message)
	}
	serve(t, "baz", filepath.Join(dir, "baz.sock"))
	h.await(t, "validate baz false", "register baz baz.sock")
}
