package dynamicplugins

import (
	"math"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestOwner: what an instance of which nobody is known causes counts to nobody, and not to root.
func TestOwner(t *testing.T) {
	t.Parallel()
	for want, info := range map[uint32]*PluginInfo{
		1000:           {Instance: &plugin.Instance{Account: plugin.Account{UID: 1000, Known: true}}},
		0:              {Instance: &plugin.Instance{Account: plugin.Account{Known: true}}},
		math.MaxUint32: {Instance: &plugin.Instance{}},
	} {
		if got := ownerOf(info); got != want {
			t.Errorf("it is %d, want %d", got, want)
		}
	}
	if got := ownerOf(&PluginInfo{}); got != math.MaxUint32 {
		t.Errorf("without a record it is %d", got)
	}
}
