package journal

import (
	"log/slog"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
)

// TestMovesLeaveNothing: a plugin whose socket is moved again and again takes no more memory than another.
func TestMovesLeaveNothing(t *testing.T) {
	j := New(slog.New(slog.DiscardHandler), "", nil, nil)
	defer j.Close()
	tell := func(kind reconciler.EventKind, path string) {
		j.Observe(reconciler.Event{Kind: kind, Type: "T", Name: "n", Instance: "i", SocketPath: path})
	}
	tell(reconciler.EventRegistered, "/a")
	tell(reconciler.EventUpdated, "/b")
	tell(reconciler.EventUpdated, "/c")
	if n := len(j.registered); n != 1 {
		t.Errorf("one plugin is kept %d times", n)
	}
	tell(reconciler.EventDeregistered, "/c")
	if n := len(j.registered); n != 0 {
		t.Errorf("%d are left of one that is gone", n)
	}
}
