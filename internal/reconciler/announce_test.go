package reconciler_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// announcing bounds what plugins announce: six with this announcement for one user, 17 in all.
func announcing(t *testing.T) (reconciler.Config, func(uid uint32, i int) *fakePlugin, map[trust.Reason]int) {
	t.Helper()
	cfg := ofUsers(t)
	refused := map[trust.Reason]int{}
	cfg.Refused = func(reason trust.Reason) { refused[reason]++ }
	cfg.Bounds = plugin.Bounds{UserBytes: 600, TotalBytes: 1700}
	return cfg, func(uid uint32, i int) *fakePlugin {
		p := of(uid)
		p.info = plugin.Info{Type: "T", Name: fmt.Sprintf("p%02d-%d", i, uid), Versions: []string{strings.Repeat("v", 64)}}
		p.info.Endpoint = "/" + strings.Repeat("e", 18-len(p.info.Name))
		return p
	}, refused
}

// count says how many plugins are in a state.
func (w *world) count(state plugin.State) (n int) {
	for _, s := range w.r.Plugins() {
		if s.State == state {
			n++
		}
	}
	return n
}

// TestAnnouncementsAreBounded: what is beyond a bound is refused, told why, and told of once; others and root find room.
func TestAnnouncementsAreBounded(t *testing.T) {
	cfg, p, refused := announcing(t)
	bubble(t, "", cfg, func(t *testing.T, w *world) {
		told := ""
		crowd := func(uid uint32, n int) {
			for i := range n {
				plugin := p(uid, i)
				plugin.onTold = func(registered bool, reason string) {
					if !registered {
						told = reason
					}
				}
				w.serve(fmt.Sprintf("/%d/%d", uid, i), "", plugin)
			}
			synctest.Wait()
		}
		crowd(60001, 20)
		if n := w.count(plugin.StateRegistered); n != 6 {
			t.Errorf("%d are registered of one user", n)
		}
		if !strings.Contains(told, "plugins of user 60001 would announce more than 600 bytes, or those of all users more than 1700") {
			t.Errorf("they are told %q", told)
		}
		if n := strings.Count(strings.Join(w.log, "\n"), "event refused"); n != 1 || refused[trust.Announcements] != 14 {
			t.Errorf("%d events of refusals, counted %v", n, refused)
		}
		crowd(60002, 20)
		crowd(0, 20)
		if n := w.count(plugin.StateRegistered); n != 6+5+6 {
			t.Errorf("%d are registered of all", n)
		}

		// What goes makes room.
		for i := range 20 {
			w.remove(fmt.Sprintf("/60001/%d", i))
		}
		synctest.Wait()
		time.Sleep(3 * time.Minute) // longer than the longest pause
		synctest.Wait()
		if n := w.count(plugin.StateRegistered); n != 6+6 {
			t.Errorf("%d are registered of those that are left", n)
		}
	})
}

// TestPluginsOfUsersAreBounded: of others there are no more plugins than are allowed to each and to all; root's have no bound.
func TestPluginsOfUsersAreBounded(t *testing.T) {
	cfg, p, refused := announcing(t)
	cfg.Bounds = plugin.Bounds{UserPlugins: 6, TotalPlugins: 9}
	bubble(t, "", cfg, func(t *testing.T, w *world) {
		crowd := func(uid uint32, n, want int) {
			t.Helper()
			for i := range n {
				w.serve(fmt.Sprintf("/%d/%d", uid, i), "", p(uid, i))
			}
			time.Sleep(3 * time.Minute) // longer than the longest pause
			synctest.Wait()
			if got := w.count(plugin.StateRegistered); got != want {
				t.Errorf("with those of user %d %d are registered, want %d", uid, got, want)
			}
		}
		crowd(60001, 10, 6)
		crowd(60002, 10, 6+3)
		crowd(0, 20, 6+3+20)
		for i := range 10 {
			w.remove(fmt.Sprintf("/60001/%d", i))
		}
		crowd(60002, 0, 6+20) // which has its own bound now, of which an event tells unless it is of the plugin that had one before
		if n := strings.Count(strings.Join(w.log, "\n"), "event refused"); n < 2 || n > 3 || refused[trust.Announcements] == 0 {
			t.Errorf("%d events of refusals, counted %v", n, refused)
		}
	})
}

// TestAnnouncementIsCountedOnce: a plugin that is asked again, moved, reborn under another name or restarted takes no more room, and gives
// back what it took.
func TestAnnouncementIsCountedOnce(t *testing.T) {
	cfg, p, _ := announcing(t)
	cfg.Bounds.UserBytes, cfg.Bounds.UserPlugins = 250, 2
	bubble(t, "", cfg, func(t *testing.T, w *world) {
		found := w.serve("/a", "", p(60001, 0))
		w.serve("/b", "", p(60001, 1))
		synctest.Wait()
		for i := range 20 {
			w.mu.Lock()
			found.info.Name = fmt.Sprintf("n%02d-60001", i)
			w.mu.Unlock()
			w.r.Reconsider()
			w.remove("/b")
			w.serve("/b", "", p(60001, 1))
			synctest.Wait()
		}
		w.stop()
		w.start()
		w.r.SetHandler("T", w.handler)
		for _, path := range []string{"/a", "/b"} {
			w.mu.Lock()
			again := w.plugins[path]
			w.mu.Unlock()
			w.serve(path, "", again)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := w.count(plugin.StateRegistered); n != 2 {
			t.Errorf("%d are registered: %+v", n, w.r.Plugins())
		}
	})
}
