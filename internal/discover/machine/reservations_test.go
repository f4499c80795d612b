package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestBoundsOfNames: of one user the oldest name goes for a new one, and when all users together have too many, nobody's goes for another
// user's.
func TestBoundsOfNames(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	name := func(uid uint32, i int) plugin.Reservation {
		return plugin.Reservation{
			Plugin: plugin.Name{Type: "T", Name: fmt.Sprintf("%d-%d", uid, i)}, Owner: plugin.Account{UID: uid, Known: true}, Until: now.Add(time.Minute),
		}
	}
	var names reservations
	add := func(what string, n plugin.Reservation, want ...plugin.Reservation) {
		t.Helper()
		if dropped := names.add(n, now); !slices.Equal(dropped, want) {
			t.Fatalf("for %s, %s, %v are dropped, want %v", what, n.Plugin, dropped, want)
		}
	}
	last := uint32(reservationsInTotal / reservationsPerUser)
	for uid := uint32(1); uid <= last; uid++ {
		for i := range reservationsPerUser {
			add("a name", name(uid, i))
		}
		if uid == 1 {
			add("one more of a user", name(uid, reservationsPerUser), name(uid, 0))
		}
	}
	add("one more of a user when there is no room", name(2, reservationsPerUser), name(2, 0))
	add("the first of another user", name(last+1, 0), name(last+1, 0))
	if got := len(names.byUser[1]); got != reservationsPerUser || len(names.byName) != reservationsInTotal {
		t.Errorf("a user has %d names, all have %d", got, len(names.byName))
	}
}

// TestNewestFirst: a greater rank goes first, and with the same rank the socket that was created later.
func TestNewestFirst(t *testing.T) {
	of := func(rank uint64, birth int64) *instance {
		return &instance{rank: rank, info: &cache.PluginInfo{Socket: plugin.SocketID{Birth: birth}}}
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
