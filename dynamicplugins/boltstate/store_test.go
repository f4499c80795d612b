package boltstate_test

import (
	"container/list"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/dynamicplugins/statetest"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) {
	if os.Getenv(writerEnv) != "" {
		runWriter(os.Getenv(writerEnv))
	}
	leaktest.Main(m)
}

func TestConformance(t *testing.T) {
	statetest.Test(t, func(dir string) (dynamicplugins.StateStorage, error) {
		return boltstate.Open(filepath.Join(dir, "not", "there", "state.db"))
	})
}

// mustOpen opens a store that is closed at the end of the test.
func mustOpen(tb testing.TB, path string) *boltstate.Store {
	tb.Helper()
	store, err := boltstate.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	return store
}

// info returns a plugin whose record takes about 200 bytes.
func info(i int) *dynamicplugins.PluginInfo {
	return &dynamicplugins.PluginInfo{
		Type:           "CSIPlugin",
		Name:           fmt.Sprintf("driver-%06d.csi.example.com", i),
		Version:        "1.2.3",
		AllocID:        fmt.Sprintf("6a0c3c2e-7a52-4d0b-9b0e-%012d", i),
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: fmt.Sprintf("/run/patchbay/plugins/driver-%06d/csi.sock", i)},
		Options: map[string]string{
			"versions": "1.0.0,1.1.0",
			"endpoint": fmt.Sprintf("/var/lib/kubelet/plugins/driver-%06d.csi.example.com/csi.sock", i),
		},
	}
}

func change(p *dynamicplugins.PluginInfo) *dynamicplugins.PluginChange {
	return &dynamicplugins.PluginChange{Type: p.Type, Name: p.Name, Plugins: []*dynamicplugins.PluginInfo{p}}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "patchbay")
	mustOpen(t, filepath.Join(dir, "state.db"))
	for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o750, filepath.Join(dir, "state.db"): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("making a state file left %v, %v", entries, err)
	}
}

func TestSecondOpener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	mustOpen(t, path)
	_, err := boltstate.Open(path)
	if !errors.Is(err, boltstate.ErrLocked) {
		t.Fatalf("second Open: %v", err)
	}
	want := "cannot open state file " + path + ": it is open already, in another process or in this one; close it there or use another state file"
	if err.Error() != want {
		t.Errorf("error is %q, want %q", err, want)
	}
}

// TestFirstOpeners checks that concurrent calls of Open for a new file return ErrLocked or a working Store, and that at least one returns a
// Store.
func TestFirstOpeners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	stores, errs := make([]*boltstate.Store, 4), make([]error, 4)
	var wg sync.WaitGroup
	for i := range stores {
		wg.Go(func() { stores[i], errs[i] = boltstate.Open(path) })
	}
	wg.Wait()
	opened := 0
	for i, store := range stores {
		switch {
		case store != nil:
			opened++
			if err := errors.Join(store.PutDynamicPluginChange(change(info(1))), store.Close()); err != nil {
				t.Error(err)
			}
		case !errors.Is(errs[i], boltstate.ErrLocked):
			t.Error(errs[i])
		}
	}
	if opened == 0 {
		t.Error("nobody could open the new file")
	}
}

func TestClosed(t *testing.T) {
	store := mustOpen(t, filepath.Join(t.TempDir(), "state.db"))
	for range 2 {
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := store.GetDynamicPluginRegistryState()
	for _, err := range []error{
		err,
		store.PutDynamicPluginRegistryState(&dynamicplugins.RegistryState{}),
		store.PutDynamicPluginChange(change(info(1))),
	} {
		if !errors.Is(err, boltstate.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestCloseWaits checks that a change during Close is either stored or returns an error.
func TestCloseWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store := mustOpen(t, path)
	const writers = 32
	var kept sync.Map
	var wg sync.WaitGroup
	begun := make(chan struct{}, writers)
	for w := range writers {
		wg.Go(func() {
			for i := 0; ; i++ {
				p := info(w*1_000_000 + i)
				if err := store.PutDynamicPluginChange(change(p)); err != nil {
					if !errors.Is(err, boltstate.ErrClosed) {
						t.Error(err)
					}
					return
				}
				kept.Store(p.Name, true)
				if i == 1 {
					begun <- struct{}{}
				}
			}
		})
	}
	<-begun
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	names := storedNames(t, path)
	count := 0
	kept.Range(func(name, _ any) bool {
		count++
		if !names[name.(string)] {
			t.Errorf("%s was acknowledged and is gone", name)
		}
		return true
	})
	if count != len(names) {
		t.Errorf("%d changes were acknowledged, %d are stored", count, len(names))
	}
}

// storedNames returns the names of all plugins in the file at path.
func storedNames(tb testing.TB, path string) map[string]bool {
	tb.Helper()
	store, err := boltstate.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer store.Close()
	state, err := store.GetDynamicPluginRegistryState()
	if err != nil {
		tb.Fatal(err)
	}
	names := make(map[string]bool)
	for _, plugins := range state.Plugins {
		for name := range plugins {
			names[name] = true
		}
	}
	return names
}

// TestOneBadChange checks that a change that cannot be stored fails without the other changes of the same transaction.
func TestOneBadChange(t *testing.T) {
	store := mustOpen(t, filepath.Join(t.TempDir(), "state.db"))
	long := info(0)
	long.Name = strings.Repeat("x", 40_000)
	stranger := &dynamicplugins.PluginChange{Type: "t", Name: "n", Plugins: []*dynamicplugins.PluginInfo{info(1)}}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			if err := store.PutDynamicPluginChange(change(info(i))); err != nil {
				t.Error(err)
			}
			if err := store.PutDynamicPluginChange(change(long)); err == nil {
				t.Error("a name of 40,000 bytes was accepted")
			}
			if err := store.PutDynamicPluginChange(stranger); err == nil {
				t.Error("an instance of another plugin was accepted")
			}
		})
	}
	wg.Wait()
	wrong := &dynamicplugins.RegistryState{Plugins: map[string]map[string]*list.List{"t": {"n": list.New()}}}
	wrong.Plugins["t"]["n"].PushBack("no plugin")
	if err := store.PutDynamicPluginRegistryState(wrong); err == nil {
		t.Error("a list of strings was accepted")
	}
}

// TestGrowth checks that the file does not grow with the number of plugins that were registered and deregistered before.
func TestGrowth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store := mustOpen(t, path)
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := range 50 {
				p := info(w*1000 + i)
				gone := &dynamicplugins.PluginChange{Type: p.Type, Name: p.Name}
				if err := errors.Join(store.PutDynamicPluginChange(change(p)), store.PutDynamicPluginChange(gone)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if names := storedNames(t, path); len(names) != 0 || file.Size() > 1<<20 {
		t.Errorf("%d names are left in a file of %d bytes", len(names), file.Size())
	}
}

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	for range 2 {
		store, err := boltstate.Open(filepath.Join(dir, "state.db"))
		if err != nil {
			fmt.Println(err)
			return
		}
		registry, err := dynamicplugins.Open(store, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(len(registry.Instances("", "")), "restored")
		err = registry.RegisterPlugin(&dynamicplugins.PluginInfo{
			Type:           dynamicplugins.PluginTypeCSINode,
			Name:           "hostpath.csi.k8s.io",
			ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/hostpath.sock"},
		})
		if err != nil {
			fmt.Println(err)
		}
		registry.Shutdown()
		if err := store.Close(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 0 restored
	// 1 restored
}
