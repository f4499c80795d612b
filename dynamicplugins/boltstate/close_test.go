package boltstate

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// TestCloseWaitsForWriters checks that Close waits for a change that waits for its transaction, and that later changes fail.
func TestCloseWaitsForWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	synctest.Test(t, func(t *testing.T) {
		store, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		change := &dynamicplugins.PluginChange{Type: "t", Name: "n", Plugins: []*dynamicplugins.PluginInfo{{Type: "t", Name: "n"}}}
		put := make(chan error)
		g := &group{done: make(chan struct{}), told: make(chan struct{})} // this test is its first caller, which writes it
		store.next = g
		go func() { put <- store.PutDynamicPluginChange(change) }()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- store.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("Close did not wait: %v", err)
		default:
		}
		if err := store.PutDynamicPluginChange(change); !errors.Is(err, ErrClosed) {
			t.Errorf("a change that came after Close: %v", err)
		}
		store.write(g)
		if err := errors.Join(<-put, <-closed); err != nil {
			t.Error(err)
		}
	})
	store, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	state, err := store.GetDynamicPluginRegistryState()
	if err != nil || state.Plugins["t"]["n"] == nil {
		t.Errorf("the change was acknowledged and is gone: %v", err)
	}
}
