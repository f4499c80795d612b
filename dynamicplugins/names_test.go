package dynamicplugins_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
)

// changeLog is a storage that keeps changes as they come, and fails if it is to.
type changeLog struct {
	dynamicplugins.StateStorage
	kept    []*plugin.Reservation
	failing error
}

func (*changeLog) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	return &dynamicplugins.RegistryState{Reservations: []plugin.Reservation{{Plugin: plugin.Name{Type: "t", Name: "before"}}}}, nil
}

func (c *changeLog) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	if c.failing == nil {
		c.kept = append(c.kept, change.Reservation)
	}
	return c.failing
}

// TestReservations: what is said of a name is saved with the next change of its plugins, once, and stays to be saved as long as that fails.
func TestReservations(t *testing.T) {
	storage := &changeLog{}
	store, err := dynamicplugins.Open(storage, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Shutdown()
	if got := store.Reservations(); len(got) != 1 || got[0].Plugin.Name != "before" {
		t.Errorf("restored %v", got)
	}
	info := &dynamicplugins.PluginInfo{Type: "t", Name: "n", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{}}
	name := plugin.Reservation{
		Plugin: plugin.Name{Type: "t", Name: "n"}, Owner: plugin.Account{UID: 1, Known: true}, Until: time.Unix(1, 0),
	}
	for _, err := range []error{store.RegisterPlugin(info), store.SaveReservation(plugin.Name{Type: "t", Name: "n"})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	store.Reserve(name)
	storage.failing = errors.New("the disk is full")
	if err := store.DeregisterPlugin("t", "n", ""); !errors.Is(err, storage.failing) {
		t.Fatal(err)
	}
	storage.failing = nil
	if err := store.DeregisterPlugin("t", "n", ""); err != nil {
		t.Fatal(err)
	}
	released := plugin.Reservation{Plugin: plugin.Name{Type: "t", Name: "n"}}
	store.Reserve(released)
	for range 2 {
		if err := store.SaveReservation(plugin.Name{Type: "t", Name: "n"}); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]*plugin.Reservation{nil, &name, &released}, storage.kept); d != "" {
		t.Errorf("saved (-want +got):\n%s", d)
	}
}
