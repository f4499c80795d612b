package reconciler_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestDisturbances has coincidences that the model meets seldom.
func TestDisturbances(t *testing.T) {
	up := []string{"validate foo /a.api", "register foo /a.api"}
	bare := func() *fakePlugin {
		return &fakePlugin{info: plugin.Info{Type: "T", Name: "foo", Versions: []string{"v1"}}}
	}

	bubble(t, "a plugin that waits for a handler announces nonsense when there is one", reconciler.Config{}, func(t *testing.T, w *world) {
		w.r.RemoveHandler("T")
		p := w.serve("/a", "foo", nil)
		synctest.Wait()
		w.mu.Lock()
		p.info.Name = ""
		w.work = map[string]int{}
		w.mu.Unlock()
		w.r.SetHandler("T", w.handler)
		time.Sleep(time.Second)
		if s := w.status("/a"); s.State != plugin.StateRefused || s.NextRetry.IsZero() {
			t.Errorf("status: %+v", s)
		}
		w.mu.Lock()
		if n := w.work["ask"]; n < 2 || n > 6 {
			t.Errorf("it was asked %d times in a second", n)
		}
		w.mu.Unlock()
	})
	bubble(t, "what is registered is renamed, and its new endpoint cannot be saved", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo", Versions: []string{"v1"}}})
		w.expectCalls("validate foo /a", "register foo /a")
		w.mu.Lock()
		w.failSave = errors.New("disk full")
		w.mu.Unlock()
		w.move("/a", "/b", p)
		w.expect("validate foo /b", "register foo /b", "gone foo /a", "deregister foo", "event unreachable foo", "event failed foo")
		w.mu.Lock()
		w.failSave = nil
		w.mu.Unlock()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if s := w.status("/b"); !s.Current || w.hidden(s.Instance) {
			t.Errorf("it is %+v; hidden: %t", s, w.hidden(s.Instance))
		}
	})
	bubble(t, "what is registered is renamed, and cannot be told", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "", bare())
		w.expectCalls("validate foo /a", "register foo /a")
		id := w.status("/a").Instance
		w.mu.Lock()
		p.notifyErr = errors.New("does not listen")
		w.mu.Unlock()
		w.move("/a", "/b", p)
		w.expect("validate foo /b", "register foo /b", "gone foo /a", "saved foo /b", "told foo true", "discarded foo", "deregister foo",
			"event unreachable foo", "event failed foo")
		if !w.hidden(id) {
			t.Error("it is dispensed")
		}
		w.mu.Lock()
		p.notifyErr = nil
		w.mu.Unlock()
		time.Sleep(time.Second)
		if s := w.status("/b"); !s.Current || s.Instance != id || w.hidden(id) {
			t.Errorf("it was instance %s and is %+v; hidden: %t", id, s, w.hidden(id))
		}
	})
	bubble(t, "what is registered is renamed, and its handler asks for patience", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "", bare())
		w.expectCalls("validate foo /a", "register foo /a")
		id := w.status("/a").Instance
		for call, path := range map[string]string{"validate ": "/b", "register ": "/c"} {
			w.handler.set(call+path, cache.ErrRetry)
			w.move(w.r.Plugins()[0].SocketPath, path, p)
			synctest.Wait()
			if !w.hidden(id) {
				t.Errorf("%s: it is dispensed", path)
			}
			w.handler.set(call+path, nil)
			time.Sleep(time.Second)
			if s := w.status(path); !s.Current || s.Instance != id || w.hidden(id) {
				t.Errorf("it was instance %s and is %+v; hidden: %t", id, s, w.hidden(id))
			}
		}
	})
	bubble(t, "what rests is renamed, and renamed back", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "", bare())
		w.expectCalls("validate foo /a", "register foo /a")
		id := w.status("/a").Instance
		w.serve("/b", "foo", nil)
		w.expectCalls("validate foo /b.api", "register foo /b.api")
		w.move("/a", "/c", p)
		w.expect("event unreachable foo")
		if !w.hidden(id) {
			t.Error("it is dispensed at /a")
		}
		w.move("/c", "/a", p)
		w.expect("confirmed foo " + id)
	})
	bubble(t, "a socket is missed before it is known where it is", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		id := w.status("/a").Instance
		leave := func(path string) {
			w.mu.Lock()
			delete(w.plugins, path)
			w.mu.Unlock()
			w.hint(p)
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			if s := w.status(path); s.Instance != id {
				t.Errorf("it is given up: %+v", s)
			}
		}
		leave("/a")
		w.move("/a", "/b", p)
		w.expectCalls(up...) // its endpoint is where it was
		if s := w.status("/b"); !s.Current || s.Instance != id {
			t.Errorf("it was instance %s and is %+v", id, s)
		}
		leave("/b")
		time.Sleep(time.Second)
		w.expectCalls("deregister foo")
		if len(w.registry["foo"]) > 0 {
			t.Error("it is not given up")
		}
	})
	bubble(t, "an older instance is renamed over the registered one", reconciler.Config{}, func(t *testing.T, w *world) {
		older := w.serve("/b", "foo", &fakePlugin{infoTakes: 10 * time.Millisecond})
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.move("/b", "/a", older)
		time.Sleep(20 * time.Millisecond)
		w.expectCalls("validate foo /b.api", "register foo /b.api", "gone foo /a.api")
		if s := w.status("/a"); s.State != plugin.StateRegistered {
			t.Errorf("it is %s", s.State)
		}
	})
	bubble(t, "the handler is removed when an instance is superseded that was never registered", reconciler.Config{},
		func(t *testing.T, w *world) {
			w.serve("/b", "foo", &fakePlugin{infoTakes: 10 * time.Millisecond})
			w.serve("/a", "foo", nil)
			time.Sleep(20 * time.Millisecond)
			w.expectCalls(up...)
			w.r.RemoveHandler("T")
			w.expectCalls("deregister foo")
			for _, path := range []string{"/a", "/b"} {
				if s := w.status(path); s.State != plugin.StateRefused || s.LastError == "" {
					t.Errorf("%s: %+v", path, s)
				}
			}
			w.r.SetHandler("T", w.handler)
			time.Sleep(20 * time.Millisecond)
			w.expectCalls(up...)
		})
	bubble(t, "two superseded instances with one endpoint go at once", reconciler.Config{}, func(_ *testing.T, w *world) {
		for _, path := range []string{"/b", "/c"} {
			p := bare()
			p.info.Endpoint = "/shared"
			w.serve(path, "", p)
			w.expectCalls("validate foo /shared", "register foo /shared")
		}
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.remove("/b")
		w.remove("/c")
		w.expectCalls("gone foo /shared")
	})
	bubble(t, "a superseded instance goes whose endpoint was given to one that is registered", reconciler.Config{}, func(_ *testing.T, w *world) {
		older := w.serve("/a", "", bare())
		w.expectCalls("validate foo /a", "register foo /a")
		w.mu.Lock()
		older.infoErr = io.EOF // It cannot be registered anew where it is moved to.
		w.mu.Unlock()
		w.move("/a", "/c", older)
		synctest.Wait()
		w.serve("/a", "", bare())
		w.expectCalls("validate foo /a", "register foo /a")
		w.remove("/c")
		w.expectCalls()
		w.remove("/a")
		w.expectCalls("deregister foo")
	})
}
