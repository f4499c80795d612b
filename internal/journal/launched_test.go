package journal

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestForgetsLaunched checks that launched plugins that are gone are deleted together with their events, and registered ones are not.
func TestForgetsLaunched(t *testing.T) {
	j := New(slog.New(slog.DiscardHandler), "", nil, nil)
	defer j.Close()
	register := func(name string) {
		socket := "/p/" + name
		j.Observe(plugin.Event{Time: time.Now(), Kind: plugin.EventRegistered, Type: "T", Name: "as-" + name, Instance: name, SocketPath: socket})
		j.ObserveLaunched(plugin.Event{Time: time.Now(), Kind: plugin.EventReady, Name: name, SocketPath: socket})
	}
	const names = 3 * history
	register("lasting")
	for i := range names {
		name := fmt.Sprint(i)
		register(name)
		j.Observe(plugin.Event{Time: time.Now(), Kind: plugin.EventDeregistered, Type: "T", Name: "as-" + name, Instance: name})
	}
	if len(j.launched) > 2*history+2 {
		t.Errorf("%d launched plugins are known, and %d events are kept", len(j.launched), history)
	}
	for name, want := range map[string]bool{"lasting": true, "0": false, fmt.Sprint(names - 1): true} {
		if as, known := j.LaunchedAs(name); known != want || known && as.Name != "as-"+name {
			t.Errorf("%s is known: %t, as %q", name, known, as)
		}
	}
}
