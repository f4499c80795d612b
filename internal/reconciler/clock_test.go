package reconciler_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The wall clock may step at any time. Births of sockets are of the wall clock, so nothing but identity may depend on them.

func (w *world) serveBorn(path string, birth time.Time, p *fakePlugin) {
	w.t.Helper()
	if p == nil {
		p = &fakePlugin{}
	}
	p.info = plugin.Info{Type: "T", Name: "foo", Endpoint: path + ".api", Versions: []string{"v1"}}
	w.mu.Lock()
	w.plugins[path] = p
	w.mu.Unlock()
	if err := w.desired.SetSocket(cache.PluginInfo{SocketPath: path, Socket: plugin.SocketID{Device: 1, Inode: 1, Birth: birth.UnixNano()}}); err != nil {
		w.t.Fatal(err)
	}
}

func TestClockSteps(t *testing.T) {
	bubble(t, "the newer instance is the one that appeared later, whenever it was born", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serveBorn("/a", time.Now().Add(time.Hour), nil)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
		w.serveBorn("/b", time.Now().Add(-time.Hour), nil)
		w.expectCalls("validate foo /b.api", "register foo /b.api")
		if s := w.status("/a"); s.State != plugin.StateSuperseded {
			t.Errorf("the older one is %s", s.State)
		}
		w.remove("/b")
		w.expectCalls("deregister foo", "validate foo /a.api", "register foo /a.api")
	})
	bubble(t, "a socket made again on the same inode, born before the old one", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serveBorn("/a", time.Now(), nil)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
		id := w.status("/a").Instance
		w.serveBorn("/a", time.Now().Add(-time.Hour), nil)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
		if s := w.status("/a"); s.Instance == id {
			t.Error("it counts as the same instance")
		}
	})
	for name, birth := range map[string]time.Duration{"long ago": -time.Hour, "in the future": time.Hour} {
		bubble(t, "a dead socket that was born "+name+" is dialled once and tried again in time", reconciler.Config{},
			func(t *testing.T, w *world) {
				p := &fakePlugin{dead: true}
				w.serveBorn("/a", time.Now().Add(birth), p)
				if s := w.status("/a"); s.State != plugin.StateBackoff || s.Attempts != 1 || time.Until(s.NextRetry) > 150*time.Millisecond {
					t.Errorf("at once: %+v", s)
				}
				w.mu.Lock()
				if w.work["dial"] != 1 {
					t.Errorf("%d dials", w.work["dial"])
				}
				p.dead = false
				w.log = nil
				w.mu.Unlock()
				time.Sleep(200 * time.Millisecond)
				w.expectCalls("validate foo /a.api", "register foo /a.api")
			})
	}
	remembered := func(path, id string, inode uint64, at time.Time) plugin.Instance {
		return plugin.Instance{ID: id, Type: "T", Name: "foo", Endpoint: path + ".api", SocketPath: path,
			Socket: plugin.SocketID{Device: 1, Inode: inode}, Peer: plugin.Peer{PID: 1, Boot: "b"}, RegisteredAt: at}
	}
	bubble(t, "remembered instances keep their order whatever their times of registration say", reconciler.Config{Restored: []plugin.Instance{
		remembered("/a", "newer", 1, time.Unix(1, 0)), remembered("/b", "older", 2, time.Unix(1<<40, 0)),
	}}, func(t *testing.T, w *world) {
		for inode, path := range map[uint64]string{1: "/a", 2: "/b"} {
			w.mu.Lock()
			w.plugins[path] = &fakePlugin{peer: plugin.Peer{PID: 1, Boot: "b"},
				info: plugin.Info{Type: "T", Name: "foo", Endpoint: path + ".api", Versions: []string{"v1"}}}
			w.mu.Unlock()
			if err := w.desired.SetSocket(cache.PluginInfo{SocketPath: path, Socket: plugin.SocketID{Device: 1, Inode: inode}}); err != nil {
				t.Fatal(err)
			}
		}
		w.r.MarkComplete()
		synctest.Wait()
		if s := w.status("/a"); s.Instance != "newer" || !s.Current {
			t.Errorf("the newer one: %+v", s)
		}
		if s := w.status("/b"); s.Instance != "older" || s.State != plugin.StateSuperseded {
			t.Errorf("the older one: %+v", s)
		}
	})
}
