package reconciler_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestGathers: where many are to be saved, a transaction waits for those that are on their way, as far as they fit into it and not for long.
func TestGathers(t *testing.T) {
	const ms = time.Millisecond
	type save struct {
		at      time.Duration
		plugins int
	}
	type group struct {
		plugins int
		takes   time.Duration // to say who it is
	}
	for what, test := range map[string]struct {
		groups []group
		want   []save // each takes a millisecond; the first one waits for nobody
	}{
		"not if nobody is on the way": {[]group{{20, 0}}, []save{{0, 1}, {1 * ms, 19}}},
		"until nobody is on the way":  {[]group{{20, 0}, {20, 4 * ms}}, []save{{0, 1}, {4 * ms, 39}}},
		"no longer than 10 ms":        {[]group{{20, 0}, {1, 20 * ms}}, []save{{0, 1}, {11 * ms, 19}, {20 * ms, 1}}},
		"until there are 64":          {[]group{{20, 0}, {100, 2 * ms}, {1, 20 * ms}}, []save{{0, 1}, {2 * ms, 64}, {13 * ms, 55}, {20 * ms, 1}}},
		"not for a few that wait":     {[]group{{8, 0}, {1, 20 * ms}}, []save{{0, 1}, {1 * ms, 7}, {20 * ms, 1}}},
		"not if there are 64 already": {[]group{{65, 0}, {1, 20 * ms}}, []save{{0, 1}, {1 * ms, 64}, {20 * ms, 1}}},
	} {
		bubble(t, what, reconciler.Config{Slots: 200}, func(t *testing.T, w *world) {
			began := time.Now()
			var saves []save
			w.saving = func() {
				w.mu.Lock()
				saves = append(saves, save{time.Since(began), 0})
				w.mu.Unlock()
				time.Sleep(ms)
			}
			w.staging = func(plugin.Instance) { saves[len(saves)-1].plugins++ }
			n := 0
			for _, g := range test.groups {
				for range g.plugins {
					w.serve(fmt.Sprint("/", n), fmt.Sprint("plugin", n), &fakePlugin{infoTakes: g.takes})
					n++
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if !slices.Equal(saves, test.want) {
				t.Errorf("saves %v, want %v", saves, test.want)
			}
		})
	}
}
