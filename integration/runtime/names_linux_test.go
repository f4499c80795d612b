package runtime_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/trust"
)

// town is a host in whose plugin directory several users have sockets.
type town struct {
	t         *testing.T
	dir       string
	rt        *pluginruntime.Runtime
	events    <-chan plugin.Event
	impostors int // how often bob's was registered
	end       func()
}

const alice, bob = 60001, 60002

func newTown(t *testing.T) *town {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have sockets of other users")
	}
	h := &town{t: t, dir: t.TempDir()}
	h.try(os.Mkdir(filepath.Join(h.dir, "plugins"), 0o755))
	h.try(os.Chmod(filepath.Join(h.dir, "plugins"), 0o1777|os.ModeSticky))
	h.start()
	t.Cleanup(func() { h.end() })
	return h
}

func (h *town) try(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// start starts a runtime with the state of the one before.
func (h *town) start() {
	h.t.Helper()
	state, err := boltstate.Open(filepath.Join(h.dir, "state.db"))
	h.try(err)
	h.rt = &pluginruntime.Runtime{
		Watcher: &pipeline.Watcher{Dirs: []string{filepath.Join(h.dir, "plugins")}}, State: state,
		TrustPolicy: trust.Policy{Owners: trust.Accounts{Users: []string{strconv.Itoa(alice), strconv.Itoa(bob)}}, Sticky: true},
	}
	h.try(h.rt.Open())
	h.rt.AddHandler("T", patchbay.AcceptHandler())
	ctx, cancel := context.WithCancel(context.Background())
	h.events = h.rt.Events(ctx, 0)
	ended := make(chan error, 1)
	go func() { ended <- h.rt.Run(ctx) }()
	h.end = func() {
		cancel()
		h.try(errors.Join(<-ended, state.Close()))
	}
}

// serve puts a user's plugin into the plugin directory.
func (h *town) serve(uid int, socket string) (stop func()) {
	h.t.Helper()
	made := filepath.Join(h.dir, socket)
	example := pluginwatcher.NewTestExamplePlugin("foo", "T", made, "v1beta1")
	h.try(example.Serve())
	h.try(os.Chown(made, uid, uid))
	path := filepath.Join(h.dir, "plugins", socket)
	h.try(os.Rename(made, path))
	stop = sync.OnceFunc(func() {
		h.try(os.Remove(path))
		h.try(example.Stop())
	})
	h.t.Cleanup(stop)
	return stop
}

// await waits for an event of a kind at a socket.
func (h *town) await(kind plugin.EventKind, socket string) {
	h.t.Helper()
	late := time.After(patience) // the test fails then
	for {
		select {
		case e := <-h.events:
			if e.Kind == plugin.EventRegistered && filepath.Base(e.SocketPath) == "bob.sock" {
				h.impostors++
			}
			if e.Kind == kind && filepath.Base(e.SocketPath) == socket {
				return
			}
		case <-late:
			h.t.Fatalf("no event %s at %s: %+v", kind, socket, h.rt.Plugins())
		}
	}
}

// TestNoRestartLosesTheName: alice's plugin restarts 1,000 times, and the host now and then, while bob's waits for its name.
func TestNoRestartLosesTheName(t *testing.T) {
	t.Parallel()
	h := newTown(t)
	stop := h.serve(alice, "alice.sock")
	h.await(plugin.EventRegistered, "alice.sock")
	h.serve(bob, "bob.sock")
	h.await(plugin.EventRefused, "bob.sock")
	restarts := 1000
	if testing.Short() {
		restarts = 200
	}
	for i := range restarts {
		stop()
		if i%2 == 0 {
			h.await(plugin.EventDeregistered, "alice.sock")
		}
		if i%50 == 49 {
			h.end()
			h.start()
			<-h.rt.Ready()
		}
		stop = h.serve(alice, "alice.sock")
		h.await(plugin.EventRegistered, "alice.sock")
	}
	stop()
	if h.impostors > 0 {
		t.Errorf("bob had the name %d times", h.impostors)
	}
}

// TestReleaseName: a name that is released is another user's at once, and stays so.
func TestReleaseName(t *testing.T) {
	h := newTown(t)
	if err := h.rt.Retry("T", "foo"); !errors.Is(err, pluginruntime.ErrUnknown) {
		t.Errorf("retried what is not known: %v", err)
	}
	stop := h.serve(alice, "alice.sock")
	h.await(plugin.EventRegistered, "alice.sock")
	if err := h.rt.Retry("T", "foo"); !errors.Is(err, pluginruntime.ErrNotWaiting) || !strings.HasSuffix(err.Error(), "it is registered") {
		t.Errorf("retried what is registered: %v", err)
	}
	if err := h.rt.ReleaseName(t.Context(), "T", "foo"); !errors.Is(err, pluginruntime.ErrNotReserved) {
		t.Errorf("released the name of what is registered: %v", err)
	}
	stop()
	h.await(plugin.EventDeregistered, "alice.sock")
	h.end()
	h.start()
	<-h.rt.Ready()
	h.serve(bob, "bob.sock")
	h.await(plugin.EventRefused, "bob.sock")
	h.try(h.rt.Retry("T", "foo"))
	if kept, ok := h.rt.Reservation(plugin.Name{Type: "T", Name: "foo"}); !ok || kept.Owner.UID != alice || time.Until(kept.Until) > 10*time.Minute {
		t.Errorf("kept: %+v, %v", kept, ok)
	}
	h.try(h.rt.ReleaseName(t.Context(), "T", "foo"))
	h.await(plugin.EventRegistered, "bob.sock")
	h.end()
	h.start()
	<-h.rt.Ready()
	h.serve(alice, "alice.sock")
	h.await(plugin.EventRefused, "alice.sock")
}
