package dynamicplugins_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// together is a storage that notes which changes come to it together, and refuses those of one name.
type together struct {
	changesOnly

	refused string
}

// changesOnly is together without batches.
type changesOnly struct {
	dynamicplugins.StateStorage

	mu    *sync.Mutex
	calls *[][]string
}

func (s changesOnly) note(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.calls = append(*s.calls, names)
}

func (s changesOnly) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	return nil, nil
}

func (s changesOnly) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	s.note(change.Name)
	return nil
}

func (s together) PutDynamicPluginChanges(changes []*dynamicplugins.PluginChange) []error {
	var names []string
	errs := make([]error, len(changes))
	for i, change := range changes {
		names = append(names, change.Name)
		if change.Name == s.refused {
			errs[i] = errBroken
		}
	}
	s.note(names...)
	return errs
}

// TestStageTogether: instances of different plugins are saved together, and each has its own outcome; those of one plugin follow each other.
func TestStageTogether(t *testing.T) {
	bad := newInfo("t", "", "1")
	infos := []*dynamicplugins.PluginInfo{
		newInfo("t", "c", "1"), newInfo("t", "a", "1"), bad, newInfo("t", "broken", "1"), newInfo("t", "a", "2"), newInfo("t", "b", "1"),
	}
	stage := func(t *testing.T, storage dynamicplugins.StateStorage, failing ...int) {
		t.Helper()
		r, err := dynamicplugins.Open(storage, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Shutdown()
		staged, errs := r.StagePlugins(infos)
		for i, info := range infos {
			fails := slices.Contains(failing, i)
			if (errs[i] != nil) != fails || (staged[i] == nil) != fails {
				t.Errorf("%s/%s: %v, %v", info.Name, info.AllocID, staged[i], errs[i])
			}
			if !fails {
				staged[i].Publish()
			}
		}
		var current []string
		for _, info := range r.ListPlugins("t") {
			current = append(current, info.Name+"/"+info.AllocID)
		}
		want := []string{"a/2", "b/1", "broken/1", "c/1"}
		if slices.Contains(failing, 3) {
			want = slices.Delete(want, 2, 3)
		}
		if !slices.Equal(current, want) {
			t.Errorf("current are %v, want %v", current, want)
		}
	}
	var calls [][]string
	only := changesOnly{mu: new(sync.Mutex), calls: &calls}
	t.Run("batches", func(t *testing.T) {
		stage(t, together{only, "broken"}, 2, 3)
		if got := fmt.Sprint(calls); got != "[[a b broken c] [a]]" {
			t.Errorf("the storage was called with %v", got)
		}
	})
	calls = nil
	t.Run("changes", func(t *testing.T) {
		stage(t, only, 2)
		if len(calls) != 5 {
			t.Errorf("the storage was called with %v", calls)
		}
	})
	t.Run("shut down", func(t *testing.T) {
		r, err := dynamicplugins.Open(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Shutdown()
		if _, errs := r.StagePlugins(infos[:2]); errs[0] == nil || !errors.Is(errs[1], dynamicplugins.ErrShutdown) {
			t.Errorf("%v", errs)
		}
	})
}

// wholes is a storage of whole states that counts them.
type wholes struct{ puts *int }

func (wholes) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) { return nil, nil }

func (s wholes) PutDynamicPluginRegistryState(*dynamicplugins.RegistryState) error {
	*s.puts++
	return nil
}

// TestStageUnchanged: what is staged again as it is costs no write.
func TestStageUnchanged(t *testing.T) {
	puts := 0
	r, err := dynamicplugins.Open(wholes{&puts}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown()
	for range 2 {
		staged, errs := r.StagePlugins([]*dynamicplugins.PluginInfo{newInfo("t", "n", "1")})
		if errs[0] != nil {
			t.Fatal(errs[0])
		}
		staged[0].Publish()
	}
	if puts != 1 {
		t.Errorf("the state was written %d times", puts)
	}
}
