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

// TestSlowMachine registers 5,000 plugins on one processor that does one thing after the other, 1, 10 and 100 times slower than one on which
// connecting takes 25 µs and an answer 600 µs. However slow it is, few more are asked than there are slots: no slot is given back because
// all are slow. If a thousand hang as well, they take no place of the others.
func TestSlowMachine(t *testing.T) {
	for _, slower := range []time.Duration{1, 10, 100} {
		for _, hung := range []int{0, 1000} {
			t.Run(fmt.Sprintf("slower=%d/hung=%d", slower, hung), func(t *testing.T) { slowMachine(t, slower, hung) })
		}
	}
}

func slowMachine(t *testing.T, slower time.Duration, hung int) {
	const plugins, slots = 5_000, 64
	cfg := reconciler.Config{Timeouts: plugin.Timeouts{Dial: time.Hour, GetInfo: time.Hour}}
	bubble(t, "", cfg, func(t *testing.T, w *world) {
		processor := make(chan struct{}, 1)
		work := func(d time.Duration) {
			processor <- struct{}{}
			time.Sleep(d * slower)
			<-processor
		}
		var asked, most atomic.Int64
		w.connecting = func() { work(25 * time.Microsecond) }
		w.answering = func() {
			if n := asked.Add(1); n > most.Load() {
				most.Store(n)
			}
			work(600 * time.Microsecond)
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
		took, needed := time.Since(began), plugins*slower*625*time.Microsecond
		t.Logf("took %v of %v, at most %d asked at once", took, needed, most.Load())
		if most.Load() > 2*slots {
			t.Errorf("%d plugins were asked at once, with %d slots", most.Load(), slots)
		}
		if took > needed+needed/4 {
			t.Errorf("it took %v, and the processor had work for %v", took, needed)
		}
	})
}
