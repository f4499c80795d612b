package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// ofUsers trusts two users with the type T.
func ofUsers(t *testing.T) reconciler.Config {
	t.Helper()
	judge, err := trustjudge.New(trust.Policy{Types: map[string]trust.Type{"T": {Users: []string{"60001", "60002"}}}})
	if err != nil {
		t.Fatal(err)
	}
	return reconciler.Config{Trust: judge}
}

func of(uid uint32) *fakePlugin {
	return &fakePlugin{account: plugin.Account{UID: uid, GID: uid, Known: true}}
}

func wantState(t *testing.T, w *world, path string, want plugin.State) {
	t.Helper()
	synctest.Wait()
	if s := w.status(path); s.State != want {
		t.Errorf("%s is %s, want %s: %+v", path, s.State, want, s)
	}
}

// TestNameOfTwoThatWait: of two users whose plugins could not be registered at first, the one that could be has the name, whichever of them
// is newer.
func TestNameOfTwoThatWait(t *testing.T) {
	bubble(t, "", ofUsers(t), func(t *testing.T, w *world) {
		for _, path := range []string{"/a", "/b"} {
			w.handler.set("validate "+path+".api", errors.New("not now"))
		}
		w.serve("/a", "foo", of(60001))
		synctest.Wait()
		w.serve("/b", "foo", of(60002))
		wantState(t, w, "/b", plugin.StateRefused)
		w.handler.set("validate /a.api", nil)
		time.Sleep(5 * time.Minute)
		wantState(t, w, "/a", plugin.StateRegistered)
		w.handler.set("validate /b.api", nil)
		time.Sleep(5 * time.Minute)
		wantState(t, w, "/a", plugin.StateRegistered)
		wantState(t, w, "/b", plugin.StateRefused)
	})
}

const nameGrace = 10 * time.Minute

// keepingNames is ofUsers with a grace.
func keepingNames(t *testing.T) reconciler.Config {
	t.Helper()
	cfg := ofUsers(t)
	cfg.NameGrace = nameGrace
	return cfg
}

// again ends the reconciler and starts another one, as a restart of the host does.
func (w *world) again() {
	w.t.Helper()
	synctest.Wait()
	w.stop()
	w.start()
	w.r.SetHandler("T", w.handler)
}

// back puts a plugin that outlived a restart of the host on its socket, which is what it was.
func (w *world) back(path string, p *fakePlugin) {
	w.t.Helper()
	if err := w.desired.SetSocket(cache.PluginInfo{SocketPath: path, Socket: p.socket}); err != nil {
		w.t.Fatal(err)
	}
}

var foo = plugin.Name{Type: "T", Name: "foo"}

// TestNameGrace: the name of a plugin that went stays its user's for a time.
func TestNameGrace(t *testing.T) {
	bubble(t, "its user has it back, another one is told whose it is", keepingNames(t), func(t *testing.T, w *world) {
		w.serve("/a", "foo", of(60001))
		synctest.Wait()
		w.serve("/b", "foo", of(60002))
		wantState(t, w, "/b", plugin.StateRefused)
		w.remove("/a")
		time.Sleep(nameGrace - time.Minute)
		wantState(t, w, "/b", plugin.StateRefused)
		kept, ok := w.r.Reservation(foo)
		told := w.status("/b").LastError
		if !ok || kept.Owner.UID != 60001 || !strings.Contains(told, "is reserved for user 60001, whose plugin had it last, until 2000-01-01T00:10:00Z") ||
			!strings.Contains(told, "patchbay release T/foo") {
			t.Errorf("kept: %+v, %v; told %q", kept, ok, told)
		}
		w.serve("/a", "foo", of(60001))
		wantState(t, w, "/a", plugin.StateRegistered)
		if kept, ok := w.r.Reservation(foo); ok {
			t.Errorf("kept while it is registered: %+v", kept)
		}
		w.remove("/a")
		time.Sleep(nameGrace + 2*time.Minute)
		wantState(t, w, "/b", plugin.StateRegistered)
	})
	bubble(t, "also when it is taken back, and when nobody accepts any more", keepingNames(t), func(t *testing.T, w *world) {
		p := w.serve("/a", "foo", of(60001))
		synctest.Wait()
		w.serve("/b", "foo", of(60002))
		synctest.Wait()
		w.r.RemoveHandler("T")
		synctest.Wait()
		w.handler.set("validate /a.api", errors.New("not now"))
		w.r.SetHandler("T", w.handler)
		time.Sleep(5 * time.Minute)
		wantState(t, w, "/b", plugin.StateRefused)
		w.handler.set("validate /a.api", nil)
		time.Sleep(3 * time.Minute)
		wantState(t, w, "/a", plugin.StateRegistered)
		w.kill(p)
		time.Sleep(5 * time.Minute)
		wantState(t, w, "/b", plugin.StateRefused)
	})
	launched := func(name string) *fakePlugin {
		p := of(60003)
		p.account.Launched, p.account.Name = true, name
		return p
	}
	free := keepingNames(t)
	free.Trust = trustjudge.Default()
	bubble(t, "root and a plugin launched by that name take it at once", free, func(t *testing.T, w *world) {
		w.serve("/a", "foo", launched("a"))
		synctest.Wait()
		w.serve("/b", "bar", launched("b"))
		synctest.Wait()
		w.remove("/a")
		w.remove("/b")
		synctest.Wait()
		stranger := launched("another")
		stranger.account.UID = 60004
		w.serve("/c", "foo", stranger)
		wantState(t, w, "/c", plugin.StateRefused)
		named := launched("foo")
		named.account.UID = 60004
		w.serve("/d", "foo", named)
		wantState(t, w, "/d", plugin.StateRegistered)
		w.serve("/e", "bar", of(0))
		wantState(t, w, "/e", plugin.StateRegistered)
	})
	bubble(t, "who never had a name holds none", keepingNames(t), func(t *testing.T, w *world) {
		w.handler.set("validate /a.api", errors.New("no"))
		w.serve("/a", "foo", of(60001))
		synctest.Wait()
		w.remove("/a")
		w.serve("/b", "foo", of(60002))
		wantState(t, w, "/b", plugin.StateRegistered)
	})
	bubble(t, "it is released", keepingNames(t), func(t *testing.T, w *world) {
		w.serve("/a", "foo", of(60001))
		synctest.Wait()
		w.serve("/b", "foo", of(60002))
		synctest.Wait()
		w.remove("/a")
		time.Sleep(time.Second)
		if err := w.r.ReleaseName(t.Context(), foo); err != nil {
			t.Fatal(err)
		}
		wantState(t, w, "/b", plugin.StateRegistered)
		if len(w.names) != 0 || !slices.Contains(w.log, "event released foo") {
			t.Errorf("on disk: %v, and %v", w.names, w.log)
		}
	})
}

// TestNameGraceOverRestarts: a restart of the host ends no grace, and begins that of what is found dead after it.
func TestNameGraceOverRestarts(t *testing.T) {
	bubble(t, "kept before", keepingNames(t), func(t *testing.T, w *world) {
		w.serve("/a", "foo", of(60001))
		synctest.Wait()
		w.remove("/a")
		time.Sleep(time.Minute)
		w.again()
		w.r.MarkComplete()
		w.serve("/b", "foo", of(60002))
		wantState(t, w, "/b", plugin.StateRefused)
		time.Sleep(nameGrace + time.Minute)
		wantState(t, w, "/b", plugin.StateRegistered)
		w.again()
		synctest.Wait()
		if len(w.names) != 0 {
			t.Errorf("an expired one is on disk: %v", w.names)
		}
	})
	bubble(t, "found dead", keepingNames(t), func(t *testing.T, w *world) {
		w.serve("/a", "foo", of(60001))
		w.again()
		w.serve("/b", "foo", of(60002))
		wantState(t, w, "/b", plugin.StateRefused) // the socket of the other may be seen any moment
		time.Sleep(time.Hour)
		wantState(t, w, "/b", plugin.StateRefused)
		w.r.MarkComplete()
		time.Sleep(nameGrace - time.Minute)
		wantState(t, w, "/b", plugin.StateRefused)
		time.Sleep(3 * time.Minute)
		wantState(t, w, "/b", plugin.StateRegistered)
	})
	far := keepingNames(t)
	far.NameGrace = time.Minute
	bubble(t, "a clock that was wrong", far, func(t *testing.T, w *world) {
		key := plugin.Name{Type: "T", Name: "foo"}
		w.names[key] = plugin.Reservation{Plugin: foo, Owner: of(60001).account, Until: time.Now().AddDate(10, 0, 0)}
		w.again()
		w.serve("/b", "foo", of(60002))
		wantState(t, w, "/b", plugin.StateRefused)
		time.Sleep(3 * time.Minute)
		wantState(t, w, "/b", plugin.StateRegistered)
	})
}

// TestImpostor: a plugin restarts 1,000 times, and the host 100 times, while another user's waits for its name.
func TestImpostor(t *testing.T) {
	bubble(t, "", keepingNames(t), func(t *testing.T, w *world) {
		w.observe = func(e plugin.Event) {
			if e.Kind == plugin.EventRegistered && e.SocketPath == "/b" {
				t.Error("the impostor was registered")
			}
		}
		impostor := of(60002)
		w.serve("/a", "foo", of(60001))
		synctest.Wait()
		w.serve("/b", "foo", impostor)
		for i := range 1000 {
			synctest.Wait()
			w.remove("/a")
			if i%10 == 9 {
				if i%20 == 9 {
					synctest.Wait()
				}
				w.again()
				w.back("/b", impostor)
				synctest.Wait()
				w.r.MarkComplete()
			}
			time.Sleep(time.Duration(i) * time.Second / 10)
			w.serve("/a", "foo", of(60001))
			wantState(t, w, "/a", plugin.StateRegistered)
		}
	})
}

// TestFloodOfNames: a user who leaves a great many names behind loses the oldest of his own, and nobody else's.
func TestFloodOfNames(t *testing.T) {
	bubble(t, "", keepingNames(t), func(t *testing.T, w *world) {
		told := 0
		w.observe = func(e plugin.Event) {
			if e.Kind == plugin.EventReleased {
				told++
			}
		}
		w.serve("/mine", "mine", of(60002))
		synctest.Wait()
		w.remove("/mine")
		synctest.Wait()
		for i := range 300 {
			path := fmt.Sprintf("/f%03d", i)
			w.serve(path, path[1:], of(60001))
			synctest.Wait()
			w.remove(path)
			synctest.Wait()
		}
		for name, want := range map[string]bool{"mine": true, "f000": false, "f043": false, "f044": true, "f299": true} {
			if _, kept := w.r.Reservation(plugin.Name{Type: "T", Name: name}); kept != want {
				t.Errorf("%s is kept: %v", name, kept)
			}
		}
		if len(w.names) != 257 || told != 1 {
			t.Errorf("%d names on disk, told %d times", len(w.names), told)
		}
	})
}

// TestRetry: what waits is tried at once.
func TestRetry(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.handler.set("validate /a.api", errors.New("not now"))
		w.serve("/a", "foo", nil)
		time.Sleep(10 * time.Minute)
		w.handler.set("validate /a.api", nil)
		wantState(t, w, "/a", plugin.StateRefused)
		if w.r.Retry("T", "bar") || w.r.Retry("U", "foo") {
			t.Error("another plugin was retried")
		}
		if !w.r.Retry("T", "foo") {
			t.Error("nothing waits")
		}
		wantState(t, w, "/a", plugin.StateRegistered)
		if w.r.Retry("T", "foo") {
			t.Error("what is registered waits")
		}
	})
}

// withRole is a handler whose plugins have a role.
type withRole struct{ *recorder }

func (withRole) RegisterPluginContext(context.Context, string, string, []string, *time.Duration) (plugin.Registration, error) {
	return plugin.Registration{Roles: []string{"role"}}, nil
}

// TestRetryByRole: what waits is found by the roles that it had, and tried as soon as it has been told of its refusal.
func TestRetryByRole(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.r.SetHandler("T", withRole{w.handler})
		w.serve("/a", "foo", &fakePlugin{refusalTakes: time.Second})
		wantState(t, w, "/a", plugin.StateRegistered)
		w.handler.set("validate /a.api", errors.New("not now"))
		w.r.SetHandler("T", withRole{w.handler})
		wantState(t, w, "/a", plugin.StateRefused)
		w.handler.set("validate /a.api", nil)
		if !w.r.Retry("role", "foo") {
			t.Error("nothing waits")
		}
		time.Sleep(time.Second)
		wantState(t, w, "/a", plugin.StateRegistered)
	})
}
