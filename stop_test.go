package patchbay_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestEventsAtTheStop checks that subscribers who read only after a Runtime has stopped receive every event that was published before.
func TestEventsAtTheStop(t *testing.T) {
	const events = 1000
	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	published := rt.Events(t.Context(), 0)
	_, changes := rt.Registry().Watch(t.Context(), "")
	for i := range events {
		rt.Internal().Publish(plugin.Event{Kind: "test"})
		err := rt.Registry().RegisterPlugin(&dynamicplugins.PluginInfo{
			Type: "T", Name: fmt.Sprint(i), ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/nowhere"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := rt.Run(ctx); err != nil {
		t.Fatal(err)
	}
	next := 0
	for e := range published {
		if next++; e.Seq != uint64(next) {
			t.Fatalf("event %d has the number %d", next, e.Seq)
		}
	}
	if next != events {
		t.Errorf("%d of %d events were delivered", next, events)
	}
	next = 0
	for e := range changes {
		if e.EventType != dynamicplugins.EventTypeRegistered || e.Info.Name != fmt.Sprint(next) {
			t.Fatalf("change %d is %v of %v", next, e.EventType, e.Info)
		}
		next++
	}
	if next != events {
		t.Errorf("%d of %d changes were delivered", next, events)
	}
}
