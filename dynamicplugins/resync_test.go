package dynamicplugins

import "testing"

// TestResyncIsAtomic: nothing changes between the picture in a resync and the events that follow it.
func TestResyncIsAtomic(t *testing.T) {
	r := newRegistry(nil, nil)
	if err := r.load(nil); err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown()
	p := &PluginInfo{Type: "t", Name: "n", ConnectionInfo: &PluginConnectionInfo{}}
	if err := r.RegisterPlugin(p); err != nil {
		t.Fatal(err)
	}
	var event *PluginUpdateEvent
	r.resync("t", func(e *PluginUpdateEvent) {
		event = e
		if r.mu.TryLock() {
			t.Error("the registry can change before the subscriber is attached")
			r.mu.Unlock()
		}
	})
	if event.EventType != EventTypeResync || len(event.Plugins) != 1 || !event.Plugins[0].equal(p) {
		t.Errorf("event is %+v", event)
	}
}
