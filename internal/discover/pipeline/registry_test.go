package pipeline

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/plugin"
)

func example() plugin.Instance {
	return plugin.Instance{
		ID: "older", Type: "CSIPlugin", Name: "foo", Versions: []string{"v1", "v2"}, Endpoint: "/foo.api", SocketPath: "/foo.sock",
		Socket: plugin.SocketID{Device: 1, Inode: 2, Birth: 3}, Peer: plugin.Peer{PID: 4, Start: 5, Boot: "boot"},
		Source: plugin.SourceLaunched, Rank: 6, RegisteredAt: time.Unix(7, 8).UTC(),
		Account:      plugin.Account{UID: 9, GID: 10, Known: true},
		Registration: plugin.Registration{Version: "1.2", Roles: []string{"csi-node"}, WatchEndpoint: true, Details: map[string]string{"node": "n"}},
	}
}

// TestReadBack: what is kept of an instance is read back as it was.
func TestReadBack(t *testing.T) {
	in := example()
	in.Rank = math.MaxInt64
	bare := plugin.Instance{ID: "bare", Type: "T", Name: "bar", Endpoint: "/bar.sock", SocketPath: "/bar.sock"}
	for _, in := range []plugin.Instance{in, bare} {
		if d := cmp.Diff(in, *infoOf(in).Instance); d != "" {
			t.Errorf("read back (-want +got):\n%s", d)
		}
	}
}

// storages are two that keep what they are given, one of which knows the documented fields only.
func storages(t *testing.T) map[string]dynamicplugins.StateStorage {
	t.Helper()
	file, err := boltstate.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return map[string]dynamicplugins.StateStorage{"boltstate": file, "a stranger's": &documented{}}
}

// documented keeps the documented fields of plugins.
type documented struct{ state *dynamicplugins.RegistryState }

func (d *documented) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	return d.state, nil
}

func (d *documented) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	d.state = state
	for _, names := range state.Plugins {
		for _, l := range names {
			for e := l.Front(); e != nil; e = e.Next() {
				p, _ := e.Value.(*dynamicplugins.PluginInfo)
				e.Value = &dynamicplugins.PluginInfo{
					Name: p.Name, Type: p.Type, Version: p.Version, AllocID: p.AllocID, ConnectionInfo: p.ConnectionInfo, Options: p.Options,
				}
			}
		}
	}
	return nil
}

// TestRestored: every storage gives an instance back as it was, and so does a file of an earlier version, whose format is the present one.
func TestRestored(t *testing.T) {
	older := example()
	newer := example()
	newer.ID, newer.Rank, newer.Socket.Inode, newer.Registration = "newer", 7, 3, plugin.Registration{}
	bare := plugin.Instance{
		ID: "bare", Type: "T", Name: "bar", Versions: []string{"v1"}, Endpoint: "/bar.sock", SocketPath: "/bar.sock",
		Source: plugin.SourceDiscovered, RegisteredAt: time.Unix(9, 0).UTC(),
	}
	own := &dynamicplugins.PluginInfo{
		Type: "T", Name: "own", AllocID: "own", Version: "3", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/own"},
		Options: map[string]string{"a": "b"},
	}
	check := func(t *testing.T, storage dynamicplugins.StateStorage) {
		t.Helper()
		store, err := dynamicplugins.Open(storage, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Shutdown()
		got := map[string]plugin.Instance{}
		for _, in := range Restored(store, slog.New(slog.DiscardHandler)) {
			got[in.ID] = in
		}
		if d := cmp.Diff(map[string]plugin.Instance{"older": older, "newer": newer, "bare": bare}, got); d != "" {
			t.Errorf("restored (-want +got):\n%s", d)
		}
		role, err := store.PluginForAlloc("csi-node", "foo", "older")
		if err != nil || role.Instance.Type != "CSIPlugin" || role.Instance.Account != older.Account || role.Options["node"] != "n" || len(role.Options) != 1 {
			t.Errorf("the role: %+v, %v", role, err)
		}
		if info, err := store.PluginForAlloc("T", "own", "own"); err != nil || !cmp.Equal(info, own) {
			t.Errorf("a program's own: %+v, %v", info, err)
		}
	}
	for name, storage := range storages(t) {
		t.Run(name, func(t *testing.T) {
			store, err := dynamicplugins.Open(storage, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, in := range []plugin.Instance{older, newer, bare} {
				stage := RegistryOf(store).Stage([]plugin.Instance{in})[0]
				if stage.Err != nil {
					t.Fatal(stage.Err)
				}
				stage.Staged.Publish()
			}
			if err := store.RegisterPlugin(own); err != nil {
				t.Fatal(err)
			}
			store.Shutdown()
			check(t, storage)
		})
	}
	t.Run("of an earlier version", func(t *testing.T) {
		check(t, fileOfBefore(t))
	})
}

// fileOfBefore opens a copy of a state file that commit 20ac2d2 wrote.
func fileOfBefore(t *testing.T) *boltstate.Store {
	t.Helper()
	packed, err := os.Open("testdata/state-20ac2d2.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(file, unpacked)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	state, err := boltstate.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	return state
}

// TestAwaitRegistered: a caller is told of each refusal of its socket, however many events come, until the plugin is registered.
func TestAwaitRegistered(t *testing.T) {
	w := &Watcher{}
	observe := w.observe
	refusals := make(chan string, 1)
	returned := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	await := func() {
		returned <- AwaitRegistered(ctx, w, "/s", func(ptype string, why error) { refusals <- ptype + " " + why.Error() })
	}
	go await()
	for len(w.awaiting.socket("/s")) == 0 {
		time.Sleep(time.Millisecond)
	}
	observe(plugin.Event{Kind: plugin.EventRegistered, SocketPath: "/other"})
	observe(plugin.Event{Kind: plugin.EventRefused, SocketPath: "/s", Type: "T", Name: "n", Message: "why"})
	if got := <-refusals; got != "T its registration as T/n was refused: why" {
		t.Error(got)
	}
	for range 2 * maxAwaited {
		observe(plugin.Event{Kind: plugin.EventFailed, SocketPath: "/s"})
	}
	observe(plugin.Event{Kind: plugin.EventRegistered, SocketPath: "/s"})
	if err := <-returned; err != nil || len(w.awaiting.socket("/s")) > 0 {
		t.Errorf("%v; waiters are left: %v", err, w.awaiting.waiters)
	}
	go await()
	cancel()
	if err := <-returned; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// socket returns the callers that wait for a socket.
func (a *awaiting) socket(path string) []chan plugin.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiters[path]
}
