package reconciler_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// bubble runs a test of a world in time of its own.
func bubble(t *testing.T, name string, cfg reconciler.Config, test func(t *testing.T, w *world)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, cfg)
			w.r.SetHandler("T", w.handler)
			test(t, w)
		})
	})
}

func TestRegistration(t *testing.T) {
	bubble(t, "saved, told, announced", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expect("validate foo /a.api", "register foo /a.api", "saved foo /a.api", "told foo true", "published foo", "event registered foo")
		w.remove("/a")
		synctest.Wait()
		w.expectCalls("deregister foo")
	})
	bubble(t, "an empty endpoint is the socket itself", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo", Versions: []string{"v1"}}})
		w.expectCalls("validate foo /a", "register foo /a")
	})
	bubble(t, "nobody is sent a refusal for a type without handler before it is refused, and it registers when the handler comes", reconciler.Config{},
		func(t *testing.T, w *world) {
			w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "Later", Name: "foo", Versions: []string{"v1"}}})
			const reason = "no handler registered for plugin type: Later at socket /a"
			w.expect("event refused foo", "told foo false: "+reason)
			if s := w.status("/a"); s.State != plugin.StateRefused || s.LastError != reason {
				t.Errorf("status is %q, %q", s.State, s.LastError)
			}
			time.Sleep(time.Hour)
			w.expect()
			w.r.SetHandler("Later", w.handler)
			w.expectCalls("validate foo /a", "register foo /a")
			w.r.RemoveHandler("Later")
			w.expectCalls("deregister foo")
			if s := w.status("/a"); s.State != plugin.StateRefused {
				t.Errorf("after the handler was removed the state is %q", s.State)
			}
			w.r.SetHandler("Later", w.handler)
			w.expectCalls("validate foo /a", "register foo /a")
		})
	bubble(t, "a socket that exists before anyone listens costs no back-off", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "foo", &fakePlugin{dead: true})
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		w.mu.Lock()
		p.dead = false
		w.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
		if s := w.status("/a"); s.Attempts != 0 {
			t.Errorf("%d attempts failed", s.Attempts)
		}
	})
}

// TestRulings has the rows of the rulings table of the specification that do not need a real socket.
func TestRulings(t *testing.T) {
	up := []string{"validate foo /a.api", "register foo /a.api"}
	up2 := []string{"validate foo /b.api", "register foo /b.api"}

	bubble(t, "second socket of the same name", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/b", "foo", nil)
		w.expectCalls(up2...)
		if s := w.status("/a"); s.State != plugin.StateSuperseded || s.Current {
			t.Errorf("the older instance is %q", s.State)
		}
		w.remove("/a")
		w.expectCalls("gone foo /a.api")
		w.remove("/b")
		w.expectCalls("deregister foo")
	})
	bubble(t, "current instance goes and an older one lives", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/b", "foo", nil)
		w.expectCalls(up2...)
		w.remove("/b")
		w.expectCalls("deregister foo", up[0], up[1])
	})
	bubble(t, "the older instance answers after the newer one", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", &fakePlugin{infoTakes: time.Second})
		w.serve("/b", "foo", nil)
		w.expectCalls(up2...)
		time.Sleep(time.Second)
		w.expectCalls()
		if s := w.status("/a"); s.State != plugin.StateSuperseded {
			t.Errorf("the older instance is %q", s.State)
		}
		w.remove("/b")
		time.Sleep(time.Second)
		w.expectCalls("deregister foo", up[0], up[1])
	})
	bubble(t, "a superseded instance is killed, then the current one", reconciler.Config{}, func(_ *testing.T, w *world) {
		a := w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		b := w.serve("/b", "foo", nil)
		w.expectCalls(up2...)
		w.kill(a)
		w.expectCalls("gone foo /a.api")
		w.kill(b)
		w.expectCalls("deregister foo")
	})
	bubble(t, "a plugin announces another name when it is asked again", reconciler.Config{}, func(_ *testing.T, w *world) {
		a := w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/b", "foo", nil)
		w.expectCalls(up2...)
		w.mu.Lock()
		a.info.Name = "bar"
		w.mu.Unlock()
		w.remove("/b")
		w.expectCalls("deregister foo", "validate bar /a.api", "register bar /a.api")
	})
	bubble(t, "socket replaced, the new one answers at once", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/a", "foo", nil)
		// The old one leaves the registry when the new one is in it: there is no gap.
		w.expect(up[0], up[1], "saved foo /a.api", "told foo true", "published foo", "event registered foo", "event deregistered foo",
			"removed foo")
		w.remove("/a")
		w.expectCalls("deregister foo")
	})
	bubble(t, "socket replaced, the new one answers late", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/a", "foo", &fakePlugin{infoTakes: 2 * time.Second})
		time.Sleep(999 * time.Millisecond)
		w.expectCalls()
		time.Sleep(time.Millisecond)
		w.expectCalls("deregister foo")
		time.Sleep(time.Second)
		w.expectCalls(up...)
	})
	bubble(t, "socket replaced, and the handler takes its time with the new one", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.handler.mu.Lock()
		w.handler.slow = map[string]chan struct{}{"register /a.api": make(chan struct{})}
		w.handler.mu.Unlock()
		w.serve("/a", "foo", nil)
		w.expect(up...)
		time.Sleep(time.Second)
		// The old one is not dispensed for longer than that.
		w.expect("event deregistered foo", "removed foo")
		close(w.handler.slow["register /a.api"])
		w.expect("saved foo /a.api", "told foo true", "published foo", "event registered foo")
	})
	bubble(t, "socket replaced by one that is renamed over it", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		p := w.serve("/tmp", "foo", &fakePlugin{infoTakes: 10 * time.Millisecond})
		synctest.Wait()
		w.move("/tmp", "/a", p)
		time.Sleep(20 * time.Millisecond)
		w.expectCalls("validate foo /tmp.api", "register foo /tmp.api", "gone foo /a.api")
		if s := w.status("/a"); s.State != plugin.StateRegistered {
			t.Errorf("it is %q", s.State)
		}
	})
	bubble(t, "a socket replaces two others, one after the other, before it answers", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/b", "bar", nil)
		w.expectCalls("validate bar /b.api", "register bar /b.api")
		p := w.serve("/a", "baz", &fakePlugin{infoTakes: 50 * time.Millisecond})
		synctest.Wait()
		w.move("/a", "/b", p)
		time.Sleep(200 * time.Millisecond)
		w.mu.Lock()
		slices.Sort(w.log)
		w.mu.Unlock()
		w.expectCalls("deregister bar", "deregister foo", "register baz /a.api", "validate baz /a.api")
	})
	bubble(t, "socket renamed before anyone could dial it", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/tmp", "foo", &fakePlugin{dead: true})
		synctest.Wait()
		w.mu.Lock()
		p.dead = false
		w.mu.Unlock()
		w.move("/tmp", "/a", p)
		w.expectCalls("validate foo /tmp.api", "register foo /tmp.api")
		if s := w.status("/a"); s.Attempts != 0 || s.LastError != "" {
			t.Errorf("it counts as a failure: %+v", s)
		}
	})
	bubble(t, "a socket that is the endpoint moves while it is registered", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.handler.slow = map[string]chan struct{}{"register /a": make(chan struct{})}
		p := w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo", Versions: []string{"v1"}}})
		w.expectCalls("validate foo /a", "register foo /a")
		w.move("/a", "/c", p)
		close(w.handler.slow["register /a"])
		w.expectCalls("validate foo /c", "register foo /c", "gone foo /a")
	})
	bubble(t, "a superseded socket that is the endpoint moves, and goes", reconciler.Config{}, func(_ *testing.T, w *world) {
		p := w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo", Versions: []string{"v1"}}})
		w.expectCalls("validate foo /a", "register foo /a")
		w.serve("/b", "foo", nil)
		w.expectCalls(up2...)
		w.move("/a", "/c", p)
		w.expectCalls()
		w.remove("/c")
		// The handler knows it by the endpoint that it was given.
		w.expectCalls("gone foo /a")
	})
	bubble(t, "a plugin whose socket moves announces nonsense there", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo", Versions: []string{"v1"}}, refusalTakes: time.Second})
		w.expectCalls("validate foo /a", "register foo /a")
		w.mu.Lock()
		p.info.Name = ""
		w.mu.Unlock()
		w.move("/a", "/c", p)
		w.expectCalls()
		if s := w.status("/c"); s.Attempts != 1 {
			t.Errorf("status: %+v", s)
		}
	})
	bubble(t, "socket replaced by a plugin of another name", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/a", "bar", &fakePlugin{infoTakes: time.Millisecond})
		time.Sleep(time.Millisecond)
		synctest.Wait()
		w.mu.Lock()
		calls := len(w.log)
		w.mu.Unlock()
		if calls == 0 {
			w.t.Error("nothing happened")
		}
		w.mu.Lock()
		w.log = nil
		w.mu.Unlock()
		if s := w.status("/a"); s.Name != "bar" || s.State != plugin.StateRegistered {
			w.t.Errorf("%s is %q", s.Name, s.State)
		}
	})
	bubble(t, "Validate fails, a live older instance stays", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.handler.set("validate /b.api", errors.New("no"))
		w.serve("/b", "foo", nil)
		w.expect(up2[0], "event refused foo", "told foo false: plugin validation failed: no")
		if s := w.status("/a"); s.State != plugin.StateRegistered || !s.Current {
			t.Errorf("the older instance is %q", s.State)
		}
		// It is not tried often while the older one serves.
		time.Sleep(20 * time.Second)
		w.expectCalls()
		time.Sleep(20 * time.Second)
		w.expectCalls(up2[0])
		w.handler.set("validate /b.api", nil)
		time.Sleep(2 * time.Minute)
		w.expectCalls(up2...)
	})
	bubble(t, "Register fails, a live older instance is registered again", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.handler.set("register /a.api", errors.New("no"))
		w.serve("/a", "foo", nil)
		w.expect(up[0], up[1], "event refused foo", "told foo false: plugin registration failed: no")
		w.remove("/a")
		w.expectCalls()
		w.handler.set("register /a.api", nil)
		w.handler.set("register /b.api", errors.New("no"))
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/b", "foo", nil)
		w.expectCalls(up2[0], up2[1], up[0], up[1])
		w.remove("/b")
		w.remove("/a")
		w.expectCalls("deregister foo")
	})
	bubble(t, "ErrRetry is silent", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.handler.set("register /a.api", fmt.Errorf("warming up: %w", cache.ErrRetry))
		w.serve("/a", "foo", nil)
		w.expect(up[0], up[1], "event failed foo")
		w.handler.set("register /a.api", nil)
		time.Sleep(time.Second)
		w.expectCalls(up...)
	})
	bubble(t, "Notify fails, the plugin is still there", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "foo", &fakePlugin{notifyErr: errors.New("busy")})
		w.expect(up[0], up[1], "saved foo /a.api", "told foo true", "discarded foo", "deregister foo", "event failed foo")
		w.mu.Lock()
		p.notifyErr = nil
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.expectCalls(up...)
		if s := w.status("/a"); s.State != plugin.StateRegistered || s.Attempts != 0 || s.LastError != "" {
			t.Errorf("status %+v", s)
		}
	})
	bubble(t, "Notify fails, a live older instance is registered again", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/b", "foo", &fakePlugin{notifyErr: errors.New("busy")})
		w.expectCalls(up2[0], up2[1], "deregister foo", up[0], up[1])
	})
	bubble(t, "the save fails", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.mu.Lock()
		w.failSave = errors.New("disk full")
		w.mu.Unlock()
		w.serve("/a", "foo", nil)
		w.expect(up[0], up[1], "deregister foo", "event failed foo")
		w.mu.Lock()
		w.failSave = nil
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.expectCalls(up...)
	})
	// unsaved has an older instance take over while nothing can be saved, and returns its ID.
	unsaved := func(w *world) string {
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		before := w.status("/a").Instance
		w.serve("/b", "foo", nil)
		w.expectCalls(up2...)
		w.mu.Lock()
		w.failSave = errors.New("disk full")
		w.mu.Unlock()
		w.remove("/b")
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.saved) != 2 || !w.unreachable[before] {
			w.t.Errorf("on disk is %+v; unreachable are %v", w.saved, w.unreachable)
		}
		w.failSave = nil
		return before
	}
	bubble(t, "the save fails of an older instance that takes over", reconciler.Config{}, func(t *testing.T, w *world) {
		before := unsaved(w)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if s := w.status("/a"); !s.Current || s.Instance != before || w.unreachable[before] || len(w.saved) != 1 {
			t.Errorf("it was %s and is %+v; on disk is %+v", before, s, w.saved)
		}
	})
	bubble(t, "the save fails of an older instance that takes over, and a newer one appears", reconciler.Config{}, func(t *testing.T, w *world) {
		before := unsaved(w)
		w.serve("/c", "foo", nil)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if s := w.status("/a"); s.State != plugin.StateSuperseded || s.Instance != before || w.unreachable[before] {
			t.Errorf("it is %+v; unreachable are %v", s, w.unreachable)
		}
	})
	bubble(t, "the handler panics", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.r.SetHandler("P", panicking{})
		w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "P", Name: "foo", Versions: []string{"v1"}}})
		w.expect("event refused foo", "told foo false: plugin registration failed: the handler panicked in RegisterPlugin: oops")
		w.serve("/b", "foo", nil)
		w.expectCalls(up2...)
	})
	bubble(t, "the handler never returns", reconciler.Config{Slots: 1}, func(t *testing.T, w *world) {
		block := make(chan struct{})
		w.handler.slow = map[string]chan struct{}{"register /a.api": block}
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.serve("/b", "bar", nil)
		time.Sleep(30 * time.Millisecond)
		w.expectCalls("validate bar /b.api", "register bar /b.api")
		if s := w.status("/a"); s.State != plugin.StateRegistering || time.Since(s.Since) < 30*time.Millisecond {
			t.Errorf("it shows as %q since %v", s.State, time.Since(s.Since))
		}
		w.remove("/a")
		w.expectCalls()
		close(block)
		w.expectCalls("deregister foo")
	})
	bubble(t, "the plugin is killed and its socket stays", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.kill(p)
		w.expectCalls("deregister foo")
		if s := w.status("/a"); s.State != plugin.StateUnreachable || s.Name != "foo" {
			t.Errorf("%q is %q", s.Name, s.State)
		}
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
	})
	bubble(t, "the plugin is killed and cannot be watched", reconciler.Config{}, func(_ *testing.T, w *world) {
		p := w.serve("/a", "foo", &fakePlugin{hidden: true})
		w.expectCalls(up...)
		time.Sleep(time.Minute)
		w.expectCalls()
		w.kill(p)
		time.Sleep(5 * time.Second)
		w.expectCalls("deregister foo")
	})
	bubble(t, "a hint comes while the last one is looked into", reconciler.Config{}, func(_ *testing.T, w *world) {
		probes := 0
		p := w.serve("/a", "foo", &fakePlugin{probed: func(hint func()) func() {
			probes++
			if probes > 1 {
				return nil // The process cannot be watched any more.
			}
			// It ends just when it is watched.
			hint()
			time.Sleep(10 * time.Millisecond)
			return func() {}
		}})
		w.expectCalls(up...)
		w.hint(p) // Its connection ended; somebody still accepts.
		time.Sleep(time.Second)
		w.expectCalls()
		w.mu.Lock()
		p.dead = true
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		w.expectCalls("deregister foo")
	})
	bubble(t, "a killed plugin stays for the grace", reconciler.Config{UnreachableGrace: time.Second}, func(t *testing.T, w *world) {
		p := w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.kill(p)
		w.expectCalls()
		if s := w.status("/a"); s.State != plugin.StateUnreachable {
			t.Errorf("it is %q", s.State)
		}
		time.Sleep(time.Second)
		w.expectCalls("deregister foo")
	})
	bubble(t, "the socket moves", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		id := w.status("/a").Instance
		w.move("/a", "/c", p)
		w.expectCalls()
		if s := w.status("/c"); s.State != plugin.StateRegistered || s.Instance != id {
			t.Errorf("after the move it is %q, instance %q", s.State, s.Instance)
		}
		w.remove("/c")
		w.expectCalls("deregister foo")
	})
	bubble(t, "the socket that is the endpoint moves", reconciler.Config{}, func(_ *testing.T, w *world) {
		p := w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo", Versions: []string{"v1"}}})
		w.expectCalls("validate foo /a", "register foo /a")
		w.move("/a", "/c", p)
		w.expect("validate foo /c", "register foo /c", "gone foo /a", "saved foo /c", "told foo true", "published foo", "event updated foo")
	})
}

// The CSI node-driver-registrar exits inside the call and leaves its socket behind; its next instance replaces the file.
func TestRefusedPluginExits(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.handler.set("validate /a.api", errors.New("too old"))
		w.serve("/a", "foo", &fakePlugin{exitsWhenRefused: true})
		w.expect("validate foo /a.api", "event refused foo", "told foo false: plugin validation failed: too old")
		time.Sleep(time.Minute)
		if s := w.status("/a"); s.State != plugin.StateUnreachable {
			t.Errorf("it is %q", s.State)
		}
		w.handler.set("validate /a.api", nil)
		w.expectCalls()
		w.serve("/a", "foo", nil)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
	})
}

func TestNoAttemptWhileTellingOfARefusal(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "Later", Name: "foo", Versions: []string{"v1"}}, refusalTakes: time.Second})
		w.expect("event refused foo", "told foo false: no handler registered for plugin type: Later at socket /a")
		w.r.SetHandler("Later", w.handler)
		w.expectCalls()
		time.Sleep(time.Second)
		w.expectCalls("validate foo /a", "register foo /a")
	})
}

type panicking struct{}

func (panicking) ValidatePlugin(string, string, []string) error { return nil }

func (panicking) RegisterPlugin(string, string, []string, *time.Duration) error { panic("oops") }

func (panicking) DeRegisterPlugin(string) {}
