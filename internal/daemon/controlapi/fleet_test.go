package controlapi

import (
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// TestLastSeenBetween checks that a plugin whose node was last alive between two times has both of them.
func TestLastSeenBetween(t *testing.T) {
	last, before := time.Unix(100, 0), time.Unix(200, 0)
	m := fleetPluginMessage(fleet.Instance{Node: &fleet.Node{State: fleet.NodeUnreachable, LastSeen: last, SeenBefore: before}})
	if !m.GetLastSeen().AsTime().Equal(last) || !m.GetLastSeenBefore().AsTime().Equal(before) ||
		!strings.Contains(m.GetReason(), "at 1970-01-01T00:01:40Z or later, but before 1970-01-01T00:03:20Z") {
		t.Error(m)
	}
}
