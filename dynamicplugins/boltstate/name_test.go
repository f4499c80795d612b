package boltstate_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestNames checks that reservations are saved together with changes of plugins, are restored when the file is opened again, and are not
// affected when all plugins are replaced.
func TestNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store := openStore(t, path)
	until := time.Unix(1234, 567)
	foo := plugin.Reservation{
		Plugin: plugin.Name{Type: "t", Name: "foo"}, Owner: plugin.Account{UID: 60001, GID: 60002, Known: true}, Until: until,
	}
	bar := plugin.Reservation{
		Plugin: plugin.Name{Type: "t", Name: "bar"}, Owner: plugin.Account{UID: 1<<32 - 1, Known: true}, Until: until.Add(time.Hour),
	}
	plugins := []*dynamicplugins.PluginInfo{{Type: "t", Name: "bar", AllocID: "x"}}
	change := func(name plugin.Reservation, plugins []*dynamicplugins.PluginInfo) {
		t.Helper()
		if err := store.PutDynamicPluginChange(&dynamicplugins.PluginChange{
			Type: name.Plugin.Type, Name: name.Plugin.Name, Plugins: plugins, Reservation: &name,
		}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(names ...plugin.Reservation) *dynamicplugins.RegistryState {
		t.Helper()
		state, err := store.GetDynamicPluginRegistryState()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(names, state.Reservations); d != "" {
			t.Errorf("names (-want +got):\n%s", d)
		}
		return state
	}
	want()
	change(foo, nil)
	change(bar, plugins)
	if err := store.PutDynamicPluginChange(&dynamicplugins.PluginChange{Type: "t", Name: "foo"}); err != nil {
		t.Fatal(err)
	}
	if state := want(bar, foo); state.Plugins["t"]["bar"].Len() != 1 || state.Plugins["t"]["foo"] != nil {
		t.Errorf("plugins: %v", state.Plugins)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	store = openStore(t, path)
	if err := store.PutDynamicPluginRegistryState(&dynamicplugins.RegistryState{}); err != nil {
		t.Fatal(err)
	}
	want(bar, foo)
	change(plugin.Reservation{Plugin: plugin.Name{Type: "t", Name: "foo"}}, nil)
	want(bar)
}

func TestDamagedName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store := openStore(t, path)
	name := plugin.Reservation{Plugin: plugin.Name{Type: "t", Name: "foo"}, Until: time.Unix(1, 0)}
	if err := store.PutDynamicPluginChange(&dynamicplugins.PluginChange{Type: "t", Name: "foo", Reservation: &name}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		names := tx.Bucket([]byte("names"))
		key, value := names.Cursor().First()
		damaged := append([]byte{}, value...)
		damaged[0] ^= 1
		return names.Put(append([]byte{}, key...), damaged)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := boltstate.Open(path); !errors.Is(err, boltstate.ErrCorrupt) {
		t.Errorf("opened: %v", err)
	}
}
