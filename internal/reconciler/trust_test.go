package reconciler_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

func TestUnlinked(t *testing.T) {
	const missed = "event unlinked foo"
	all := func(w *world) string {
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Join(w.log, "\n")
	}
	bubble(t, "a plugin that serves on is missed", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		synctest.Wait()
		w.remove("/a")
		time.Sleep(5*time.Second - 1)
		if got := all(w); strings.Contains(got, missed) {
			t.Errorf("too early:\n%s", got)
		}
		time.Sleep(time.Nanosecond)
		if got := all(w); strings.Count(got, missed) != 1 {
			t.Errorf("not missed once:\n%s", got)
		}
	})
	for name, meanwhile := range map[string]func(w *world, p *fakePlugin){
		"it ends": func(w *world, p *fakePlugin) { w.kill(p) },
		"it listens no more, and its process lives": func(w *world, p *fakePlugin) {
			w.hint(p)
			w.mu.Lock()
			p.dead = true
			w.mu.Unlock()
		},
		"it makes another socket":         func(w *world, _ *fakePlugin) { w.serve("/b", "foo", nil) },
		"it ended before it was unlinked": func(w *world, p *fakePlugin) { w.kill(p) },
	} {
		bubble(t, "nobody is missed: "+name, reconciler.Config{}, func(t *testing.T, w *world) {
			p := w.serve("/a", "foo", nil)
			synctest.Wait()
			w.remove("/a")
			synctest.Wait()
			meanwhile(w, p)
			time.Sleep(time.Minute)
			if got := all(w); strings.Contains(got, missed) {
				t.Errorf("missed:\n%s", got)
			}
		})
	}
	bubble(t, "a socket that is refused is not missed, and the reason told", reconciler.Config{}, func(t *testing.T, w *world) {
		w.withdrawn = errors.New("it is open to all")
		var why string
		w.observe = func(e plugin.Event) {
			if e.Kind == plugin.EventDeregistered {
				why = e.Message
			}
		}
		w.serve("/a", "foo", nil)
		synctest.Wait()
		w.remove("/a")
		time.Sleep(time.Minute)
		if got := all(w); strings.Contains(got, missed) || why != "it is open to all" {
			t.Errorf("why: %q, and:\n%s", why, got)
		}
	})
}

// TestNames is about plugins of different users under one name.
func TestNames(t *testing.T) {
	judge, err := trustjudge.New(trust.Policy{Types: map[string]trust.Type{"T": {Users: []string{"60001", "60002"}}}})
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[trust.Reason]int{}
	cfg := reconciler.Config{Trust: judge, Refused: func(r trust.Reason) { reasons[r]++ }}
	as := func(uid uint32) *fakePlugin {
		return &fakePlugin{account: plugin.Account{UID: uid, GID: uid, Known: true}}
	}
	// bare returns one whose endpoint is its socket, which is asked again when that is renamed.
	bare := func() *fakePlugin {
		p := as(60001)
		p.info = plugin.Info{Type: "T", Name: "foo", Versions: []string{"v1"}}
		return p
	}
	state := func(t *testing.T, w *world, path string, want plugin.State) {
		t.Helper()
		synctest.Wait()
		if s := w.status(path); s.State != want {
			t.Errorf("%s is %s, want %s: %+v", path, s.State, want, s)
		}
	}
	bubble(t, "a living plugin's name is its user's", cfg, func(t *testing.T, w *world) {
		w.serve("/a", "foo", as(60001))
		state(t, w, "/a", plugin.StateRegistered)
		w.serve("/b", "foo", as(60002))
		state(t, w, "/b", plugin.StateRefused)
		state(t, w, "/a", plugin.StateRegistered)
		if s := w.status("/b"); s.Type != "T" || s.Name != "foo" || s.NextRetry.IsZero() || reasons[trust.Name] == 0 {
			t.Errorf("got %+v, %v", s, reasons)
		}
		w.serve("/c", "foo", as(60001))
		state(t, w, "/c", plugin.StateRegistered)
		state(t, w, "/a", plugin.StateSuperseded)
		// It is free as soon as the last of them has gone.
		w.remove("/c")
		state(t, w, "/a", plugin.StateRegistered)
		state(t, w, "/b", plugin.StateRefused)
		w.remove("/a")
		state(t, w, "/b", plugin.StateRegistered)
	})
	bubble(t, "root takes any name, and nobody takes root's", cfg, func(t *testing.T, w *world) {
		w.serve("/a", "foo", as(60001))
		state(t, w, "/a", plugin.StateRegistered)
		w.serve("/r", "foo", as(0))
		state(t, w, "/r", plugin.StateRegistered)
		w.serve("/b", "foo", as(60001))
		state(t, w, "/b", plugin.StateRefused)
		w.remove("/r")
		state(t, w, "/b", plugin.StateRegistered)
	})
	bubble(t, "a registered plugin that announces what it may not is let go of", cfg, func(t *testing.T, w *world) {
		w.r.SetHandler("U", w.handler)
		p := w.serve("/a", "", bare())
		state(t, w, "/a", plugin.StateRegistered)
		w.mu.Lock()
		p.info.Type = "U"
		w.mu.Unlock()
		w.move("/a", "/b", p)
		state(t, w, "/b", plugin.StateRefused)
		if reasons[trust.PluginType] == 0 || len(w.registry["foo"]) != 0 {
			t.Errorf("reasons %v, registry %v", reasons, w.registry)
		}
	})
	bubble(t, "one whose process is not trusted is let go of, and not spoken to", cfg, func(t *testing.T, w *world) {
		p := w.serve("/a", "", bare())
		state(t, w, "/a", plugin.StateRegistered)
		w.expectCalls("validate foo /a", "register foo /a")
		w.mu.Lock()
		p.dialErr = judge.Listener("/b", 60004, 60004)
		w.mu.Unlock()
		w.move("/a", "/b", p)
		state(t, w, "/b", plugin.StateRefused)
		w.expectCalls("deregister foo")
	})
}
