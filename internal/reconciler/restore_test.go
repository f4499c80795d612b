package reconciler_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestRestore(t *testing.T) {
	peer := plugin.Peer{PID: 7, Start: 8, Boot: "b"}
	socket := func(n uint64) plugin.SocketID { return plugin.SocketID{Device: 1, Inode: n, Birth: 1} }
	remembered := func(path, id string, n uint64) plugin.Instance {
		return plugin.Instance{ID: id, Type: "T", Name: "foo", Versions: []string{"v1"}, Endpoint: path + ".api", SocketPath: path,
			Socket: socket(n), Peer: peer, Source: plugin.SourceDiscovered, RegisteredAt: time.Unix(1, 0)}
	}
	ranked := func(path, id string, n, rank uint64) plugin.Instance {
		in := remembered(path, id, n)
		in.Rank = rank
		return in
	}
	rankedAndBorn := func(path, id string, n, rank uint64, birth int64) plugin.Instance {
		in := ranked(path, id, n, rank)
		in.Socket.Birth = birth
		return in
	}
	up := []string{"validate foo /a.api", "register foo /a.api"}
	// outcome sees which instance is current in the end and which rests behind it.
	outcome := func(w *world, current, older string) {
		w.t.Helper()
		w.r.MarkComplete()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if c, o := w.status(current), w.status(older); !c.Current || o.State != plugin.StateSuperseded {
			w.t.Errorf("what should be current: %+v; what should be superseded: %+v", c, o)
		}
	}
	// foundAs puts a socket of a certain identity in place, with a plugin behind it.
	foundAs := func(w *world, path string, id plugin.SocketID, p *fakePlugin) {
		if p == nil {
			p = &fakePlugin{}
		}
		p.info = plugin.Info{Type: "T", Name: "foo", Endpoint: path + ".api", Versions: []string{"v1"}}
		w.mu.Lock()
		w.plugins[path] = p
		w.mu.Unlock()
		if err := w.desired.SetSocket(cache.PluginInfo{SocketPath: path, Socket: id}); err != nil {
			w.t.Fatal(err)
		}
	}
	found := func(w *world, path string, n uint64, p *fakePlugin) { foundAs(w, path, socket(n), p) }

	bubble(t, "alive: the same instance", reconciler.Config{Restored: []plugin.Instance{remembered("/a", "old", 1)}},
		func(t *testing.T, w *world) {
			synctest.Wait()
			if s := w.status("/a"); s.State != plugin.StateRestored || s.Instance != "old" || s.Name != "foo" {
				t.Errorf("before it is checked: %+v", s)
			}
			found(w, "/a", 1, &fakePlugin{peer: peer})
			w.r.MarkComplete()
			w.expectCalls(up...)
			if s := w.status("/a"); s.State != plugin.StateRegistered || s.Instance != "old" || !s.RegisteredAt.Equal(time.Unix(1, 0)) {
				t.Errorf("after: %+v", s)
			}
		})
	bubble(t, "alive, and moved", reconciler.Config{Restored: []plugin.Instance{{ID: "old", Type: "T", Name: "foo", Versions: []string{"v1"},
		Endpoint: "/b", SocketPath: "/b", Socket: socket(1), Peer: peer}}}, func(t *testing.T, w *world) {
		found(w, "/a", 1, &fakePlugin{peer: peer, infoTakes: time.Second})
		w.r.MarkComplete()
		synctest.Wait()
		if s := w.status("/a"); s.Instance != "old" || s.Endpoint != "/a" || !w.hidden("old") {
			t.Errorf("before it answers: %+v; hidden: %t", s, w.hidden("old"))
		}
		time.Sleep(2 * time.Second)
		w.expectCalls(up...)
		if s := w.status("/a"); !s.Current || s.Instance != "old" || w.hidden("old") {
			t.Errorf("after: %+v; hidden: %t", s, w.hidden("old"))
		}
	})
	bubble(t, "its socket is gone", reconciler.Config{Restored: []plugin.Instance{remembered("/a", "old", 1)}},
		func(t *testing.T, w *world) {
			w.r.MarkComplete()
			w.expect("event deregistered foo", "removed foo")
			if left := w.r.Plugins(); len(left) != 0 {
				t.Errorf("left: %+v", left)
			}
		})
	bubble(t, "nobody accepts on its socket", reconciler.Config{Restored: []plugin.Instance{remembered("/a", "old", 1)}},
		func(_ *testing.T, w *world) {
			found(w, "/a", 1, &fakePlugin{peer: peer, dead: true})
			w.r.MarkComplete()
			w.expect("event unreachable foo", "event deregistered foo", "removed foo")
		})
	bubble(t, "alive, and no longer wanted", reconciler.Config{Restored: []plugin.Instance{remembered("/a", "old", 1)}},
		func(_ *testing.T, w *world) {
			w.handler.set("validate /a.api", errors.New("too old"))
			found(w, "/a", 1, &fakePlugin{peer: peer})
			w.r.MarkComplete()
			w.expect(up[0], "removed foo", "event deregistered foo", "event refused foo", "told foo false: plugin validation failed: too old")
		})
	bubble(t, "another socket at its path", reconciler.Config{Restored: []plugin.Instance{remembered("/a", "old", 1)}},
		func(t *testing.T, w *world) {
			found(w, "/a", 2, &fakePlugin{peer: peer})
			w.r.MarkComplete()
			w.expectCalls(up...)
			if s := w.status("/a"); s.Instance == "old" || len(w.registry["foo"]) != 1 {
				t.Errorf("it is instance %q; the registry has %v", s.Instance, w.registry["foo"])
			}
		})
	bubble(t, "another process behind its socket", reconciler.Config{Restored: []plugin.Instance{remembered("/a", "old", 1)}},
		func(t *testing.T, w *world) {
			found(w, "/a", 1, &fakePlugin{peer: plugin.Peer{PID: 7, Start: 9, Boot: "b"}})
			w.r.MarkComplete()
			w.expectCalls(up...)
			if s := w.status("/a"); s.Instance == "old" || len(w.registry["foo"]) != 1 {
				t.Errorf("it is instance %q; the registry has %v", s.Instance, w.registry["foo"])
			}
		})
	bubble(t, "two instances keep their rank though the older one answers first",
		reconciler.Config{Restored: []plugin.Instance{remembered("/b", "new", 2), remembered("/a", "old", 1)}},
		func(t *testing.T, w *world) {
			found(w, "/b", 2, &fakePlugin{peer: peer, infoTakes: 50 * time.Millisecond})
			found(w, "/a", 1, &fakePlugin{peer: peer})
			w.r.MarkComplete()
			time.Sleep(time.Second)
			w.expectCalls("validate foo /b.api", "register foo /b.api", "confirmed foo old")
			if s := w.status("/a"); s.State != plugin.StateSuperseded || s.Instance != "old" {
				t.Errorf("the older one: %+v", s)
			}
			w.remove("/b")
			w.expectCalls("deregister foo", "validate foo /a.api", "register foo /a.api")
		})
	bubble(t, "the rank is that of appearance, not that of birth",
		reconciler.Config{Restored: []plugin.Instance{ranked("/a", "new", 1, 2), ranked("/b", "old", 2, 1)}},
		func(t *testing.T, w *world) {
			found(w, "/a", 1, &fakePlugin{peer: peer})
			found(w, "/b", 2, &fakePlugin{peer: peer})
			w.r.MarkComplete()
			w.expectCalls(up[0], up[1], "confirmed foo old")
			if s := w.status("/a"); s.State != plugin.StateRegistered || s.Instance != "new" {
				t.Errorf("the newer one: %+v", s)
			}
		})
	bubble(t, "the rank is that of appearance, not that of registration: the older one took over while the newer did not answer",
		reconciler.Config{Restored: []plugin.Instance{ranked("/a", "old", 1, 1), ranked("/b", "new", 2, 2)}},
		func(t *testing.T, w *world) {
			found(w, "/b", 2, &fakePlugin{peer: peer, infoTakes: 50 * time.Millisecond})
			found(w, "/a", 1, &fakePlugin{peer: peer})
			w.r.MarkComplete()
			time.Sleep(time.Second)
			w.expectCalls("validate foo /b.api", "register foo /b.api", "confirmed foo old")
			if s := w.status("/b"); s.State != plugin.StateRegistered || w.registry["foo"][0] != "new" {
				t.Errorf("the newer one: %+v; the registry has %v", s, w.registry["foo"])
			}
		})
	bubble(t, "the older one is seen first, and answers first",
		reconciler.Config{Restored: []plugin.Instance{ranked("/a", "old", 1, 1), ranked("/b", "new", 2, 2)}},
		func(_ *testing.T, w *world) {
			found(w, "/a", 1, &fakePlugin{peer: peer})
			found(w, "/b", 2, &fakePlugin{peer: peer, infoTakes: 50 * time.Millisecond})
			outcome(w, "/b", "/a") // the older one may have been registered for a moment
		})
	bubble(t, "the rank stays though nobody accepted for a while",
		reconciler.Config{Restored: []plugin.Instance{ranked("/b", "new", 2, 2), ranked("/a", "old", 1, 1)}},
		func(t *testing.T, w *world) {
			revived := &fakePlugin{peer: peer, dead: true}
			found(w, "/a", 1, revived)
			found(w, "/b", 2, &fakePlugin{peer: peer})
			w.r.MarkComplete()
			time.Sleep(time.Second)
			w.mu.Lock()
			revived.dead = false
			w.mu.Unlock()
			outcome(w, "/b", "/a")
		})
	bubble(t, "those without a rank keep the order of their records, and have none in the next ones",
		reconciler.Config{Restored: []plugin.Instance{remembered("/b", "new", 2), remembered("/a", "old", 1)}},
		func(t *testing.T, w *world) {
			found(w, "/b", 2, &fakePlugin{peer: peer})
			found(w, "/a", 1, &fakePlugin{peer: peer})
			w.r.MarkComplete()
			synctest.Wait()
			if len(w.saved) == 0 || w.saved[0].ID != "new" || w.saved[0].Rank != 0 {
				t.Errorf("the records: %+v", w.saved)
			}
			found(w, "/c", 3, &fakePlugin{peer: peer})
			synctest.Wait()
			if s := w.status("/c"); !s.Current || w.saved[0].Rank == 0 {
				t.Errorf("one that appears: %+v, with the record %+v", s, w.saved[0])
			}
		})
	bubble(t, "another process behind the socket of the older one",
		reconciler.Config{Restored: []plugin.Instance{ranked("/b", "new", 2, 2), ranked("/a", "old", 1, 1)}},
		func(t *testing.T, w *world) {
			found(w, "/b", 2, &fakePlugin{peer: peer})
			found(w, "/a", 1, &fakePlugin{peer: plugin.Peer{PID: 7, Start: 9, Boot: "b"}})
			outcome(w, "/b", "/a")
		})
	bubble(t, "two that are found in the same place keep their order",
		reconciler.Config{Restored: []plugin.Instance{
			rankedAndBorn("/a", "newest", 2, 100<<26+12, 10), rankedAndBorn("/c", "oldest", 1, 100<<26, 5),
		}},
		func(t *testing.T, w *world) {
			foundAs(w, "/a", plugin.SocketID{Device: 1, Inode: 2, Birth: 10}, &fakePlugin{peer: peer, hangs: true})
			foundAs(w, "/d", plugin.SocketID{Device: 1, Inode: 3, Birth: 7}, &fakePlugin{infoTakes: time.Second})
			foundAs(w, "/b", plugin.SocketID{Device: 1, Inode: 4, Birth: 8}, nil)
			foundAs(w, "/c", plugin.SocketID{Device: 1, Inode: 1, Birth: 5}, &fakePlugin{peer: peer})
			outcome(w, "/b", "/d")
		})
	bubble(t, "one that was found ranks between one that was found before an earlier restart and what that one came behind",
		reconciler.Config{Restored: []plugin.Instance{
			rankedAndBorn("/c", "found earlier", 1, 99<<26+3, 5), rankedAndBorn("/a", "newest", 2, 100<<26, 10),
		}},
		func(t *testing.T, w *world) {
			foundAs(w, "/b", plugin.SocketID{Device: 1, Inode: 3, Birth: 7}, nil)
			foundAs(w, "/c", plugin.SocketID{Device: 1, Inode: 1, Birth: 5}, &fakePlugin{peer: peer})
			foundAs(w, "/a", plugin.SocketID{Device: 1, Inode: 2, Birth: 10}, &fakePlugin{peer: peer, hangs: true})
			outcome(w, "/b", "/c")
		})
	// One that is not remembered came while nobody looked, or rested behind its successor without ever being registered.
	born := func(n uint64, birth int64) plugin.SocketID { return plugin.SocketID{Device: 1, Inode: n, Birth: birth} }
	current := remembered("/a", "current", 1)
	current.Socket.Birth = 5
	for name, c := range map[string]struct {
		birth  int64
		synced bool
		newer  bool
	}{
		"found, and born before the one that is remembered":      {birth: 4},
		"found, and born at the same moment":                     {birth: 5, newer: true},
		"found, and born later":                                  {birth: 6, newer: true},
		"found, and nobody knows when it was born":               {newer: true},
		"it came after the restart, when the clock stepped back": {birth: 4, synced: true, newer: true},
	} {
		for _, order := range []string{"the remembered one appears first", "the other appears first", "the other is registered first"} {
			if c.synced && order != "the remembered one appears first" {
				continue
			}
			bubble(t, name+"; "+order, reconciler.Config{Restored: []plugin.Instance{current}}, func(t *testing.T, w *world) {
				appear := []func(){
					func() { foundAs(w, "/a", born(1, 5), &fakePlugin{peer: peer}) },
					func() { foundAs(w, "/b", born(2, c.birth), nil) },
				}
				if order != "the remembered one appears first" {
					slices.Reverse(appear)
				}
				appear[0]()
				if order == "the other is registered first" {
					synctest.Wait()
				}
				if c.synced {
					w.r.MarkComplete()
					synctest.Wait()
				}
				appear[1]()
				w.r.MarkComplete()
				synctest.Wait()
				want := map[bool]string{true: "/b", false: "/a"}[c.newer]
				if s := w.status(want); s.State != plugin.StateRegistered || w.registry["foo"][0] != s.Instance {
					t.Errorf("%s is %s as %s; the registry has %v", want, s.State, s.Instance, w.registry["foo"])
				}
			})
		}
	}
}
