package cache_test

import (
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
)

// TestRefuses checks that empty paths are errors, what is not there is removed without one, and a subscription may be closed twice and used
// after that.
func TestRefuses(t *testing.T) {
	d := cache.NewDesired()
	actual := cache.NewActualStateOfWorld()
	changes := d.Changes()
	for range 2 {
		for call, err := range map[string]error{
			"AddOrUpdatePlugin": d.AddOrUpdatePlugin(""), "SetSocket": d.SetSocket(cache.Socket{}),
			"MoveSocket from": d.MoveSocket("", cache.Socket{Path: "/a"}), "MoveSocket to": d.MoveSocket("/a", cache.Socket{}),
			"AddPlugin": actual.AddPlugin(cache.PluginInfo{}),
		} {
			if err == nil {
				t.Errorf("%s of no path: no error", call)
			}
		}
		d.RemovePlugin("")
		actual.RemovePlugin("")
		if len(changes.Take())+len(d.GetPluginsToRegister())+len(actual.GetRegisteredPlugins()) > 0 || d.PluginExists("") {
			t.Error("there is something")
		}
		changes.Close()
	}
	if err := d.SetSocket(cache.Socket{Path: "/a"}); err != nil || len(changes.Take()) > 0 {
		t.Errorf("a closed subscription has changes, or %v", err)
	}
	// A Clock that panics leaves no lock held.
	d.Clock = func() (none time.Time) { panic("oops") }
	func() {
		defer func() { _ = recover() }()
		_ = d.AddOrUpdatePlugin("/b")
	}()
	if d.PluginExists("/b") {
		t.Error("the socket without a time is there")
	}
	if cache.EndpointDialer(t.Context()) != nil || cache.EndpointDialer(cache.WithEndpointDialer(t.Context(), nil)) != nil {
		t.Error("a context without a dialer has one")
	}
}
