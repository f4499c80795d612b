package fleet

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// TestLastSeen: a plugin whose node was last alive between two times has both in the table.
func TestLastSeen(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	before, last := timestamppb.New(now.Add(-10*time.Second)), timestamppb.New(now.Add(-time.Hour))
	for want, p := range map[string]*patchbayv1.FleetPlugin{
		"-": {}, "60m ago": {LastSeen: last}, "over 10s ago": {LastSeenBefore: before}, "10s to 60m ago": {LastSeen: last, LastSeenBefore: before},
	} {
		if row := fleetPluginRow(p, now); row[len(row)-1] != want {
			t.Errorf("%q, want %q", row, want)
		}
	}
}
