package reconciler_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// finder is a handler that finds out something about its plugins.
type finder struct {
	*recorder
	found plugin.Registration
}

func (f finder) RegisterPluginContext(
	_ context.Context, name, endpoint string, versions []string, timeout *time.Duration,
) (plugin.Registration, error) {
	return f.found, f.RegisterPlugin(name, endpoint, versions, timeout)
}

// serveEndpoint has somebody accept on the endpoint of the plugin at path.
func (w *world) serveEndpoint(path string) *fakePlugin {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &fakePlugin{}
	w.plugins[path] = p
	return p
}

func TestWatchedEndpoint(t *testing.T) {
	up := []string{"validate foo /a.api", "register foo /a.api"}
	told := []string{"saved foo /a.api", "told foo true", "published foo", "event registered foo"}
	start := func(w *world) (registrar, driver *fakePlugin) {
		w.r.SetHandler("T", finder{w.handler, plugin.Registration{WatchEndpoint: true}})
		driver = w.serveEndpoint("/a.api")
		registrar = w.serve("/a", "foo", nil)
		synctest.Wait()
		w.expect(slices.Concat(up, told)...)
		return registrar, driver
	}
	bubble(t, "its death is noticed, and its return", reconciler.Config{}, func(t *testing.T, w *world) {
		_, driver := start(w)
		w.kill(driver)
		synctest.Wait()
		w.expectCalls("deregister foo")
		time.Sleep(20 * time.Second)
		w.expect("event failed foo")
		if s := w.status("/a"); s.State != plugin.StateUnreachable || s.Attempts < 6 || s.Attempts > 14 || s.NextRetry.IsZero() {
			t.Errorf("status %+v", s)
		}
		w.serveEndpoint("/a.api")
		time.Sleep(6 * time.Second)
		w.expect(slices.Concat(up, told)...)
		if s := w.status("/a"); s.State != plugin.StateRegistered || s.Attempts > 0 {
			t.Errorf("status %+v", s)
		}
	})
	bubble(t, "it accepts no more and its process lives", reconciler.Config{}, func(_ *testing.T, w *world) {
		_, driver := start(w)
		w.mu.Lock()
		driver.dead = true // nothing is told of it
		w.mu.Unlock()
		time.Sleep(5 * time.Second)
		w.expectCalls("deregister foo")
	})
	bubble(t, "one that lives is left alone", reconciler.Config{}, func(_ *testing.T, w *world) {
		_, driver := start(w)
		w.hint(driver)
		time.Sleep(time.Hour)
		w.expect()
	})
	bubble(t, "nothing is watched after the socket went", reconciler.Config{}, func(_ *testing.T, w *world) {
		_, driver := start(w)
		w.remove("/a")
		synctest.Wait()
		w.expectCalls("deregister foo")
		w.kill(driver)
		time.Sleep(time.Minute)
		w.expect("event unlinked foo") // which is not of its endpoint: who registered it lives
	})
	bubble(t, "not unless it is asked for", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		synctest.Wait()
		w.expect(slices.Concat(up, told)...)
		time.Sleep(time.Hour)
		w.expect()
	})
}

func TestRegistrationIsKept(t *testing.T) {
	found := plugin.Registration{Roles: []string{"r"}, Version: "2.1", Details: map[string]string{"node": "n"}}
	bubble(t, "in status and record", reconciler.Config{}, func(t *testing.T, w *world) {
		w.r.SetHandler("T", finder{w.handler, found})
		w.serve("/a", "foo", nil)
		synctest.Wait()
		s := w.status("/a")
		if s.Version != "2.1" || !slices.Equal(s.Registration.Roles, found.Roles) || s.Registration.Details["node"] != "n" {
			t.Errorf("status %+v", s)
		}
		if saved := w.saved[0].Registration; !slices.Equal(saved.Roles, found.Roles) || saved.Version != "2.1" {
			t.Errorf("saved %+v", saved)
		}
	})
}
