package reconciler_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// refusals are what is kept of refusals, as TYPE/NAME: REASON.
func refusals(w *world) []string {
	synctest.Wait()
	var all []string
	for _, s := range w.r.Refusals() {
		if s.State != plugin.StateRefused || s.Instance != "" || s.Current || s.Since.IsZero() {
			w.t.Errorf("the refusal is %+v", s)
		}
		all = append(all, s.Type+"/"+s.Name+": "+s.LastError)
	}
	return all
}

func TestRefusals(t *testing.T) {
	const tooOld = "T/foo: plugin validation failed: too old"
	want := func(t *testing.T, w *world, reasons ...string) {
		t.Helper()
		if got := refusals(w); strings.Join(got, "\n") != strings.Join(reasons, "\n") {
			t.Errorf("the refusals are %q, want %q", got, reasons)
		}
	}
	bubble(t, "the reason outlives the plugin, until its name is registered", reconciler.Config{}, func(t *testing.T, w *world) {
		w.handler.set("validate /a.api", errors.New("too old"))
		w.serve("/a", "foo", nil)
		want(t, w) // it is shown with the plugin
		w.remove("/a")
		want(t, w, tooOld)
		time.Sleep(time.Hour)
		want(t, w, tooOld)
		w.serve("/b", "bar", nil)
		want(t, w, tooOld)
		w.serve("/c", "foo", nil)
		want(t, w)
		w.remove("/c")
		want(t, w)
	})
	bubble(t, "it outlives a plugin that exits on it and leaves its socket", reconciler.Config{}, func(t *testing.T, w *world) {
		w.handler.set("validate /a.api", errors.New("too old"))
		w.serve("/a", "foo", &fakePlugin{exitsWhenRefused: true})
		time.Sleep(time.Second)
		if s := w.status("/a"); s.State != plugin.StateUnreachable {
			t.Errorf("the socket is %+v", s)
		}
		want(t, w, tooOld)
	})
	bubble(t, "one of each user is kept, and the last", reconciler.Config{}, func(t *testing.T, w *world) {
		for i, uid := range []uint32{60001, 60002, 60001} {
			path := fmt.Sprintf("/%d", i)
			w.handler.set("validate "+path+".api", fmt.Errorf("reason %d", i))
			w.serve(path, "foo", &fakePlugin{account: plugin.Account{UID: uid, Known: true}})
			synctest.Wait()
			w.remove(path)
			synctest.Wait()
		}
		want(t, w, "T/foo: plugin validation failed: reason 2", "T/foo: plugin validation failed: reason 1")
	})
	bubble(t, "a long reason is cut, and not shown twice", reconciler.Config{}, func(t *testing.T, w *world) {
		w.handler.set("validate /a.api", errors.New(strings.Repeat("ä", 10_000)))
		w.serve("/a", "foo", nil)
		want(t, w)
		w.remove("/a")
		if got := refusals(w); len(got) != 1 || len(got[0]) > 4200 || !strings.HasSuffix(got[0], "ä…") {
			t.Errorf("got %q", got)
		}
	})
	bubble(t, "they are bounded by user and in sum", reconciler.Config{}, func(t *testing.T, w *world) {
		refuse := func(uid uint32, name string) {
			path := "/" + name
			w.handler.set("validate "+path+".api", errors.New("no"))
			w.serve(path, name, &fakePlugin{account: plugin.Account{UID: uid, Known: true}})
			synctest.Wait()
			w.remove(path)
			synctest.Wait()
		}
		refuse(60000, "mine")
		for i := range 70 {
			refuse(60001, fmt.Sprintf("flood%02d", i))
		}
		got := refusals(w)
		if len(got) != 65 || !strings.HasPrefix(got[0], "T/flood06: ") || !strings.HasPrefix(got[64], "T/mine: ") {
			t.Errorf("%d are kept: %q", len(got), got)
		}
		for i := range 1024 {
			refuse(uint32(61000+i/64), fmt.Sprintf("many%04d", i))
		}
		if got := refusals(w); len(got) != 1024 || !strings.HasPrefix(got[0], "T/many0000: ") {
			t.Errorf("%d are kept, the first %q", len(got), got[0])
		}
	})
}

func TestUnlinkedIsListed(t *testing.T) {
	// listed is whether the plugin is listed without its socket.
	listed := func(w *world) bool {
		synctest.Wait()
		for _, s := range w.r.Plugins() {
			if s.State == plugin.StateUnlinked {
				if s.Name != "foo" || s.SocketPath != "/a" || s.Instance != "" || s.Current || !strings.Contains(s.LastError, "serves on it") {
					w.t.Errorf("it is listed as %+v", s)
				}
				return true
			}
		}
		return false
	}
	for name, ends := range map[string]func(w *world, p *fakePlugin){
		"it ends": func(w *world, p *fakePlugin) { w.kill(p) },
		"it listens no more": func(w *world, p *fakePlugin) {
			w.mu.Lock()
			p.dead = true // nothing is told of it
			w.mu.Unlock()
			time.Sleep(5 * time.Second)
		},
		"its name is registered": func(w *world, _ *fakePlugin) { w.serve("/b", "foo", nil) },
	} {
		bubble(t, "until "+name, reconciler.Config{}, func(t *testing.T, w *world) {
			p := w.serve("/a", "foo", nil)
			synctest.Wait()
			w.remove("/a")
			time.Sleep(4 * time.Second)
			if listed(w) {
				t.Error("it is listed before it could end")
			}
			time.Sleep(2 * time.Second)
			if !listed(w) {
				t.Errorf("it is not listed: %+v", w.r.Plugins())
			}
			w.handler.set("validate /r.api", errors.New("no"))
			w.serve("/r", "foo", nil)
			time.Sleep(time.Hour)
			if !listed(w) {
				t.Errorf("it is not listed an hour later, beside one that is refused: %+v", w.r.Plugins())
			}
			w.hint(p)
			if !listed(w) {
				t.Errorf("it is not listed after it closed its connection: %+v", w.r.Plugins())
			}
			ends(w, p)
			if listed(w) {
				t.Errorf("it is still listed: %+v", w.r.Plugins())
			}
		})
	}
}

func TestDeadEndpointIsNamed(t *testing.T) {
	bubble(t, "the endpoint", reconciler.Config{}, func(t *testing.T, w *world) {
		var told []string
		w.observe = func(e plugin.Event) {
			if e.Kind == plugin.EventUnreachable || e.Kind == plugin.EventDeregistered {
				told = append(told, e.Message)
			}
		}
		w.r.SetHandler("T", finder{w.handler, plugin.Registration{WatchEndpoint: true}})
		driver := w.serveEndpoint("/a.api")
		w.serve("/a", "foo", nil)
		synctest.Wait()
		w.kill(driver)
		synctest.Wait()
		if len(told) != 2 || !strings.HasPrefix(told[0], "nobody accepts on its endpoint /a.api any more: ") ||
			told[1] != "nobody accepts on its endpoint /a.api" {
			t.Errorf("told %q", told)
		}
	})
}

// TestRefusedForWhatItAnnounces: a plugin is found by the name under which it was refused, also if nothing of what it announced counts.
func TestRefusedForWhatItAnnounces(t *testing.T) {
	for name, p := range map[string]*fakePlugin{
		"its endpoint is relative":  {info: plugin.Info{Type: "T", Name: "foo", Endpoint: "../x.sock"}},
		"its endpoint is another's": {infoErr: &trust.Refusal{Reason: trust.Endpoint, Problem: "p", Remedy: "r"}},
	} {
		bubble(t, name, reconciler.Config{}, func(t *testing.T, w *world) {
			w.serve("/a", "foo", p)
			if s := w.status("/a"); s.Type != "T" || s.Name != "foo" || s.LastError == "" || s.Instance != "" {
				t.Errorf("the status is %+v", s)
			}
			w.remove("/a")
			if got := refusals(w); len(got) != 1 || !strings.HasPrefix(got[0], "T/foo: ") {
				t.Errorf("the refusals are %q", got)
			}
		})
	}
	bubble(t, "a name that cannot be shown", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "T", Name: "\x1b[2J", Versions: []string{"v1"}}})
		if s := w.status("/a"); s.Name != "" || s.LastError == "" {
			t.Errorf("the status is %+v", s)
		}
		w.remove("/a")
		if got := refusals(w); len(got) != 0 {
			t.Errorf("the refusals are %q", got)
		}
	})
}

// TestRefusalsStayTheirUsers: a user whose registered plugins come to be refused fills his own share, and not that of root.
func TestRefusalsStayTheirUsers(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.handler.set("validate /root.api", errors.New("no"))
		w.serve("/root", "root's", &fakePlugin{account: plugin.Account{Known: true}})
		synctest.Wait()
		w.remove("/root")
		for i := range 64 {
			p := w.serve(fmt.Sprintf("/u%02d", i), fmt.Sprintf("u%02d", i), &fakePlugin{account: plugin.Account{UID: 60001, Known: true}})
			synctest.Wait()
			w.kill(p)
			synctest.Wait()
			w.mu.Lock()
			p.dead, p.infoErr = false, &trust.Refusal{Reason: trust.Endpoint, Problem: "p", Remedy: "r"}
			w.mu.Unlock()
			time.Sleep(30 * time.Second)
		}
		for i := range 64 {
			w.remove(fmt.Sprintf("/u%02d", i))
		}
		if got := refusals(w); len(got) != 65 || !strings.Contains(strings.Join(got, "\n"), "T/root's: ") {
			t.Errorf("%d refusals are kept: %q", len(got), got)
		}
	})
}
