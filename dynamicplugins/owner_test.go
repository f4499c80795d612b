package dynamicplugins

import (
	"math"
	"testing"
)

// TestOwner: what an instance of which nobody is known causes counts to nobody, and not to root.
func TestOwner(t *testing.T) {
	t.Parallel()
	for want, info := range map[uint32]*PluginInfo{
		1000:           {Record: &PluginRecord{Account: &PluginAccount{UID: 1000}}},
		0:              {Record: &PluginRecord{Account: &PluginAccount{}}},
		math.MaxUint32: {Record: &PluginRecord{}},
	} {
		if got := ownerOf(info); got != want {
			t.Errorf("it is %d, want %d", got, want)
		}
	}
	if got := ownerOf(&PluginInfo{}); got != math.MaxUint32 {
		t.Errorf("without a record it is %d", got)
	}
}
