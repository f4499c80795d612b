package reconciler_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestSilentPluginsHoldNobodyUp has a crowd of plugins accept and say nothing. How long others wait for a slot is counted: all else takes
// no time here.
func TestSilentPluginsHoldNobodyUp(t *testing.T) {
	const most = 3 * time.Millisecond
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		for i := range crowd {
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

// TestSlowMachine registers a crowd of plugins on one processor that does one thing after the other, 1, 10 and 100 times slower than one on
// which connecting takes 25 µs and an answer 600 µs, and on one where only the answers are slower. However slow it is, hardly more plugins
// are asked at once than there are slots: no slot is returned because all are slow. A fifth as many that hang as well do not delay the
// others.
func TestSlowMachine(t *testing.T) {
	const us = time.Microsecond
	for name, takes := range map[string]struct{ connect, answer time.Duration }{
		"normal":           {25 * us, 600 * us},
		"10 times slower":  {250 * us, 6000 * us},
		"100 times slower": {2500 * us, 60_000 * us},
		"answers slower":   {25 * us, 6000 * us},
	} {
		for _, hung := range []int{0, crowd / 5} {
			t.Run(fmt.Sprintf("%s, %d hang", name, hung), func(t *testing.T) { slowMachine(t, takes.connect, takes.answer, hung) })
		}
	}
}

func slowMachine(t *testing.T, connect, answer time.Duration, hung int) {
	const plugins, slots = crowd, 64
	cfg := reconciler.Config{Timeouts: plugin.Timeouts{Dial: time.Hour, GetInfo: time.Hour}}
	bubble(t, "", cfg, func(t *testing.T, w *world) {
		processor := make(chan struct{}, 1)
		work := func(d time.Duration) {
			processor <- struct{}{}
			time.Sleep(d)
			<-processor
		}
		var asked, most atomic.Int64
		w.connecting = func() { work(connect) }
		w.answering = func() {
			if n := asked.Add(1); n > most.Load() {
				most.Store(n)
			}
			work(answer)
			asked.Add(-1)
		}
		began := time.Now()
		var registered sync.WaitGroup
		for i := range plugins {
			if i*hung/plugins < (i+1)*hung/plugins {
				w.serve(fmt.Sprint("/hung", i), fmt.Sprint("hung", i), &fakePlugin{hangs: true})
			}
			registered.Add(1)
			var once sync.Once
			w.serve(fmt.Sprint("/p", i), fmt.Sprint("p", i), &fakePlugin{onTold: func(bool, string) { once.Do(registered.Done) }})
		}
		registered.Wait()
		took, needed := time.Since(began), plugins*(connect+answer)
		t.Logf("took %v of %v, at most %d asked at once", took, needed, most.Load())
		if most.Load() > 2*slots {
			t.Errorf("%d plugins were asked at once, with %d slots", most.Load(), slots)
		}
		if took > needed+needed/4 {
			t.Errorf("it took %v, and the processor had work for %v", took, needed)
		}
	})
}
