package reconciler_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestBackoff(t *testing.T) {
	bubble(t, "grows, and a socket made again starts at once", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", &fakePlugin{infoErr: errors.New("garbage")})
		time.Sleep(time.Hour)
		s := w.status("/a")
		// 0.1 s, 0.2 s, … up to 2 min, then every 2 min: about 11 + 28 attempts in an hour.
		if s.State != plugin.StateBackoff || s.Attempts < 30 || s.Attempts > 50 || s.NextRetry.IsZero() {
			t.Errorf("after an hour: %+v", s)
		}
		w.mu.Lock()
		events := len(w.log)
		w.log = nil
		w.mu.Unlock()
		if events > 10 {
			t.Errorf("the same failure was reported %d times", events)
		}
		w.serve("/a", "foo", nil)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
	})
	bubble(t, "hung plugins hold nobody up", reconciler.Config{Slots: 2}, func(_ *testing.T, w *world) {
		for i := range 100 {
			w.serve(fmt.Sprint("/hung", i), "hung", &fakePlugin{hangs: true})
		}
		w.serve("/a", "foo", nil)
		time.Sleep(2 * time.Second)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
	})
	bubble(t, "those that wait for the disk hold nobody up and are saved together", reconciler.Config{Slots: 2}, func(t *testing.T, w *world) {
		var saves atomic.Int32
		disk := make(chan struct{})
		w.saving = func() {
			saves.Add(1)
			<-disk
		}
		for i := range 100 {
			w.serve(fmt.Sprint("/", i), fmt.Sprint("plugin", i), nil)
		}
		synctest.Wait()
		w.mu.Lock()
		registered := len(slices.DeleteFunc(slices.Clone(w.log), func(s string) bool { return !strings.HasPrefix(s, "register ") }))
		w.mu.Unlock()
		if registered != 100 {
			t.Errorf("while the disk hangs, %d of 100 are registered with the handler", registered)
		}
		close(disk)
		synctest.Wait()
		// One hung in the goroutine that saves, two in their slots.
		if n := saves.Load(); len(w.saved) != 100 || n > 5 {
			t.Errorf("%d of 100 are saved, in %d steps", len(w.saved), n)
		}
	})
	bubble(t, "a thousand dead sockets hold nobody up and cost no goroutines", reconciler.Config{}, func(t *testing.T, w *world) {
		for i := range 1000 {
			w.serve(fmt.Sprint("/dead", i), "dead", &fakePlugin{dead: true})
		}
		w.serve("/a", "foo", nil)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
		time.Sleep(time.Second)
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > 50 {
			t.Errorf("%d goroutines", n)
		}
	})
	bubble(t, "a hung instance does not hold up its successor at the same path", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.serve("/a", "foo", &fakePlugin{hangs: true})
		synctest.Wait()
		w.serve("/a", "foo", nil)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
	})
}

// A plugin that is not ready yet is asked again and is not sent a refusal.
func TestNotReadyYet(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		p := w.serve("/a", "foo", &fakePlugin{infoErr: errors.New("unavailable: warming up")})
		time.Sleep(time.Minute)
		s := w.status("/a")
		if s.State != plugin.StateBackoff || s.Attempts < 5 || !strings.HasSuffix(s.LastError, "warming up") || !s.NextRetry.After(time.Now()) {
			t.Errorf("status: %+v", s)
		}
		w.mu.Lock()
		p.infoErr = nil
		for _, line := range w.log {
			if line != "event failed " {
				t.Error(line)
			}
		}
		w.log = nil
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		w.expectCalls("validate foo /a.api", "register foo /a.api")
	})
}

// TestRepeatedFailuresAreToldSeldom counts events: one for each change, and for what stays the same after 4, 16, 64 attempts.
func TestRepeatedFailuresAreToldSeldom(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.handler.set("validate /a.api", errors.New("too old"))
		w.serve("/a", "foo", nil)
		for _, phase := range []struct {
			what    string
			refusal error
			lasts   time.Duration
			want    int
		}{
			{"a first failure", errors.New("too old"), time.Second, 2}, // the 1st and the 4th attempt
			{"the same for an hour", errors.New("too old"), time.Hour, 1},
			{"another failure", errors.New("too new"), time.Minute * 3, 1},
			{"the first one again", errors.New("too old"), time.Minute * 3, 1},
			{"success", nil, time.Hour, 0},
		} {
			w.handler.set("validate /a.api", phase.refusal)
			time.Sleep(phase.lasts)
			synctest.Wait()
			w.mu.Lock()
			got := 0
			for _, line := range w.log {
				if line == "event refused foo" {
					got++
				}
			}
			w.log = nil
			w.mu.Unlock()
			if got != phase.want {
				t.Errorf("%s: %d events, want %d", phase.what, got, phase.want)
			}
		}
	})
}

// TestReconsider: what waits for its next attempt is tried at once when what judges it has changed, and its back-off starts over.
func TestReconsider(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.handler.set("validate /a.api", errors.New("too old"))
		w.serve("/a", "foo", nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := w.status("/a"); time.Until(s.NextRetry) < time.Second {
			time.Sleep(2 * time.Second) // not just before an attempt
			synctest.Wait()
		}
		w.mu.Lock()
		w.log = nil
		w.mu.Unlock()
		w.handler.set("validate /a.api", nil)
		w.r.Reconsider()
		before := time.Now()
		synctest.Wait()
		w.expectCalls("validate foo /a.api", "register foo /a.api")
		if s := w.status("/a"); s.State != plugin.StateRegistered || !time.Now().Equal(before) || s.Attempts != 0 {
			t.Errorf("it is %+v", s)
		}
		w.r.Reconsider() // has nothing to do with what is registered
		synctest.Wait()
		w.expectCalls()
	})
}

// TestReconsiderInGrace: what is out of reach is given up in time, whatever is reconsidered meanwhile.
func TestReconsiderInGrace(t *testing.T) {
	for name, meanwhile := range map[string]func(p *fakePlugin){
		"nobody accepts": func(*fakePlugin) {},
		"it hangs":       func(p *fakePlugin) { p.dead, p.hangs = false, true },
	} {
		bubble(t, name, reconciler.Config{UnreachableGrace: 10 * time.Second}, func(t *testing.T, w *world) {
			p := w.serve("/a", "foo", nil)
			synctest.Wait()
			w.kill(p)
			synctest.Wait()
			w.mu.Lock()
			meanwhile(p)
			w.mu.Unlock()
			for range 2 {
				time.Sleep(6 * time.Second)
				w.r.Reconsider()
			}
			if s := w.status("/a"); s.Instance != "" {
				t.Errorf("after the grace it is %+v", s)
			}
		})
	}
}
