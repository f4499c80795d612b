package reconciler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
)

// TestSilentPluginsHoldNobodyUp has 5,000 plugins accept and say nothing. How long others wait for a slot is counted: all else takes no time
// here.
func TestSilentPluginsHoldNobodyUp(t *testing.T) {
	const silent, most = 5_000, 3 * time.Millisecond
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		for i := range silent {
			w.serve(fmt.Sprint("/silent", i), "silent", &fakePlugin{hangs: true})
		}
		time.Sleep(500 * time.Millisecond)
		// At first they are found, all at once, and then they are tried again, from early and often to late and seldom.
		for i, pause := range []time.Duration{
			500 * time.Millisecond, 3900 * time.Millisecond, 300 * time.Millisecond, 100 * time.Millisecond, 5 * time.Second, 7 * time.Second,
			time.Minute, time.Minute,
		} {
			time.Sleep(pause)
			began, registered := time.Now(), make(chan struct{})
			w.serve(fmt.Sprint("/new", i), fmt.Sprint("new", i), &fakePlugin{onTold: func(bool, string) { close(registered) }})
			<-registered
			if took := time.Since(began); took > most {
				t.Errorf("newcomer %d waits %v", i, took)
			}
		}
	})
}
