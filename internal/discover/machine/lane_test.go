package machine

import (
	"slices"
	"testing"

	"github.com/patchbay-dev/patchbay/cache"
)

// TestNewestFirst: a greater rank goes first, and with the same rank the socket that was created later.
func TestNewestFirst(t *testing.T) {
	of := func(rank uint64, birth int64) *instance {
		return &instance{rank: rank, info: &cache.PluginInfo{Socket: cache.SocketID{Birth: birth}}}
	}
	want := []*instance{of(2, 1), of(1, 3), of(1, 2), of(0, 9)}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
		var l lane
		for _, i := range order {
			l.join(want[i])
		}
		if !slices.Equal(l.members, want) {
			t.Errorf("joined in the order %v, the lane is %v", order, l.members)
		}
	}
}
