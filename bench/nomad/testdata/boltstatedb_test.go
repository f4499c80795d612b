package state

import (
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

// TestRestoredPlugins counts the plugins that are restored from Nomad's storage and from that of this repository.
func TestRestoredPlugins(t *testing.T) {
	dir := t.TempDir()
	for want, open := range []func() (dynamicplugins.StateStorage, func() error){
		func() (dynamicplugins.StateStorage, func() error) {
			db, err := NewBoltStateDB(hclog.NewNullLogger(), dir)
			if err != nil {
				t.Fatal(err)
			}
			return db, db.Close
		},
		func() (dynamicplugins.StateStorage, func() error) {
			db, err := boltstate.Open(filepath.Join(dir, "plugins.db"))
			if err != nil {
				t.Fatal(err)
			}
			return db, db.Close
		},
	} {
		for life := range 2 {
			storage, closeStorage := open()
			registry, err := dynamicplugins.Open(storage, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(registry.ListPlugins("T")); got != want*life {
				t.Errorf("%T, life %d: %d plugins, want %d", storage, life, got, want*life)
			}
			if err := registry.RegisterPlugin(&dynamicplugins.PluginInfo{
				Type: "T", Name: "n", AllocID: "1", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/n"},
			}); err != nil {
				t.Fatal(err)
			}
			registry.Shutdown()
			if err := closeStorage(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
