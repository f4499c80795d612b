package journal

import (
	"log/slog"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestMovesLeaveNothing checks that a plugin whose socket is moved many times takes no more memory than another.
func TestMovesLeaveNothing(t *testing.T) {
	j := New(slog.New(slog.DiscardHandler), "", nil, nil)
	defer j.Close()
	tell := func(kind plugin.EventKind, path string) {
		j.Observe(plugin.Event{Kind: kind, Type: "T", Name: "n", Instance: "i", SocketPath: path})
	}
	tell(plugin.EventRegistered, "/a")
	tell(plugin.EventUpdated, "/b")
	tell(plugin.EventUpdated, "/c")
	if n := len(j.registered); n != 1 {
		t.Errorf("one plugin is kept %d times", n)
	}
	tell(plugin.EventDeregistered, "/c")
	if n := len(j.registered); n != 0 {
		t.Errorf("%d are left of one that is gone", n)
	}
}
