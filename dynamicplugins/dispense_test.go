package dynamicplugins_test

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// TestDispenseDoesNotAllocate: what is allocated at a dispense is the dispenser's, however many plugins and subscribers there are.
func TestDispenseDoesNotAllocate(t *testing.T) {
	var client any = new(int)
	r := open(t, nil, map[string]dynamicplugins.PluginDispenser{
		"t": func(*dynamicplugins.PluginInfo) (any, error) { return client, nil },
	})
	_ = r.PluginsUpdatedCh(t.Context(), "")
	for i := range 1000 {
		register(t, r, newInfo("t", fmt.Sprint("n", i), "1"), newInfo("t", fmt.Sprint("n", i), "2"))
	}
	allocations := testing.AllocsPerRun(1000, func() {
		if got, err := r.DispensePlugin("t", "n500"); got != client || err != nil {
			t.Error(got, err)
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations for each dispense", allocations)
	}
}
