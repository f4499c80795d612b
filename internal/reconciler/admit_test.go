package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// gatekeeper answers Config.Admit.
type gatekeeper struct {
	w *world
	// What follows is guarded by the world's lock.
	err   error
	hangs bool // until its context ends
}

func (g *gatekeeper) admit(ctx context.Context, in plugin.Instance) error {
	g.w.note("admit %s/%s %s %s %s pid %d id %t", in.Type, in.Name, in.SocketPath, in.Endpoint, in.Source, in.Peer.PID, in.ID != "")
	g.w.mu.Lock()
	hangs, err := g.hangs, g.err
	g.w.mu.Unlock()
	if hangs {
		<-ctx.Done()
		g.w.note("given up")
		return ctx.Err()
	}
	return err
}

func (g *gatekeeper) set(err error, hangs bool) {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.err, g.hangs = err, hangs
}

func TestAdmit(t *testing.T) {
	no := errors.New("not on the list")
	later := fmt.Errorf("nobody answers: %w", cache.ErrRetry)
	run := func(name string, test func(t *testing.T, w *world, g *gatekeeper)) {
		g := &gatekeeper{}
		bubble(t, name, reconciler.Config{Admit: g.admit}, func(t *testing.T, w *world) {
			g.w = w
			test(t, w, g)
		})
	}
	const validated, registered = "validate foo /a.api", "register foo /a.api"
	const asked = "admit T/foo /a /a.api discovered pid 7 id false"
	p := func() *fakePlugin { return &fakePlugin{peer: plugin.Peer{PID: 7, Start: 1, Boot: "b"}} }

	run("admitted", func(_ *testing.T, w *world, _ *gatekeeper) {
		w.serve("/a", "foo", p())
		w.expectCalls(validated, asked, registered)
	})
	run("not validated", func(_ *testing.T, w *world, _ *gatekeeper) {
		w.handler.set("validate /a.api", errors.New("no"))
		w.serve("/a", "foo", p())
		w.expectCalls(validated)
	})
	run("refused", func(t *testing.T, w *world, g *gatekeeper) {
		g.set(no, false)
		w.serve("/a", "foo", p())
		w.expect(validated, asked, "event refused foo", "told foo false: not on the list")
		if s := w.status("/a"); s.State != plugin.StateRefused || s.LastError != no.Error() || s.Attempts != 1 || s.NextRetry.IsZero() {
			t.Errorf("status: %+v", s)
		}
		g.set(nil, false)
		time.Sleep(time.Second)
		w.expectCalls(validated, asked, registered)
	})
	run("no answer", func(t *testing.T, w *world, g *gatekeeper) {
		g.set(later, false)
		w.serve("/a", "foo", p())
		w.expect(validated, asked, "event failed foo")
		if s := w.status("/a"); s.State != plugin.StateBackoff || s.LastError != later.Error() {
			t.Errorf("status: %+v", s)
		}
		g.set(nil, false)
		time.Sleep(time.Second)
		w.expectCalls(validated, asked, registered)
	})
	run("moved and refused", func(t *testing.T, w *world, g *gatekeeper) {
		foo := w.serve("/a", "foo", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo"}})
		w.expectCalls("validate foo /a", "admit T/foo /a /a discovered pid 1 id false", "register foo /a")
		g.set(no, false)
		w.move("/a", "/b", foo)
		w.expectCalls("validate foo /b", "admit T/foo /b /b discovered pid 1 id true", "deregister foo")
		if len(w.registry["foo"]) > 0 {
			t.Error("it is still in the registry")
		}
	})
	run("moved and no answer", func(t *testing.T, w *world, g *gatekeeper) {
		foo := w.serve("/a", "foo", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo"}})
		w.expectCalls("validate foo /a", "admit T/foo /a /a discovered pid 1 id false", "register foo /a")
		id := w.status("/a").Instance
		g.set(later, false)
		w.move("/a", "/b", foo)
		w.expect("validate foo /b", "admit T/foo /b /b discovered pid 1 id true", "event unreachable foo", "deregister foo", "event failed foo")
		if !w.hidden(id) {
			t.Error("it is dispensed")
		}
		g.set(nil, false)
		time.Sleep(time.Second)
		w.expectCalls("validate foo /b", "admit T/foo /b /b discovered pid 1 id true", "register foo /b")
		if s := w.status("/b"); s.Instance != id || w.hidden(id) {
			t.Errorf("it was instance %s and is %+v; hidden: %t", id, s, w.hidden(id))
		}
	})
	run("remembered, or taking over, and no answer", func(t *testing.T, w *world, g *gatekeeper) {
		for _, test := range []struct {
			what string
			do   func()
		}{
			{"remembered", func() {
				w.stop()
				w.start()
				w.r.SetHandler("T", w.handler)
				if err := w.desired.SetSocket(cache.PluginInfo{SocketPath: "/a", Socket: w.plugins["/a"].socket}); err != nil {
					t.Fatal(err)
				}
				w.r.MarkComplete()
			}},
			{"taking over", func() {
				g.set(nil, false)
				w.serve("/b", "foo", p())
				synctest.Wait()
				g.set(later, false)
				w.remove("/b")
			}},
			{"another handler", func() { w.r.SetHandler("T", w.handler) }},
		} {
			g.set(nil, false)
			if w.plugins["/a"] == nil {
				w.serve("/a", "foo", p())
			}
			id := w.status("/a").Instance
			g.set(later, false)
			test.do()
			synctest.Wait()
			w.mu.Lock()
			told := slices.Contains(w.log, "event unreachable foo")
			w.log = nil
			w.mu.Unlock()
			if !w.hidden(id) || !told {
				t.Errorf("%s: it is dispensed; that it is not was told: %t", test.what, told)
			}
			g.set(nil, false)
			time.Sleep(time.Second)
			if s := w.status("/a"); !s.Current || s.Instance != id || w.hidden(id) {
				t.Errorf("%s: it was instance %s and is %+v; hidden: %t", test.what, id, s, w.hidden(id))
			}
		}
	})
	run("gone meanwhile", func(t *testing.T, w *world, g *gatekeeper) {
		g.set(nil, true)
		w.serve("/a", "foo", p())
		if s := w.status("/a"); s.State != plugin.StateAdmitting {
			t.Errorf("status: %+v", s)
		}
		w.remove("/a")
		w.expect(validated, asked, "given up")
	})
	run("stopped meanwhile", func(t *testing.T, w *world, g *gatekeeper) {
		foo := w.serve("/a", "foo", &fakePlugin{info: plugin.Info{Type: "T", Name: "foo"}})
		w.expectCalls("validate foo /a", "admit T/foo /a /a discovered pid 1 id false", "register foo /a")
		g.set(nil, true)
		w.move("/a", "/b", foo)
		w.expectCalls("validate foo /b", "admit T/foo /b /b discovered pid 1 id true")
		w.stop()
		w.expect("given up")
		if len(w.registry["foo"]) != 1 {
			t.Errorf("registry: %v", w.registry)
		}
	})
}
