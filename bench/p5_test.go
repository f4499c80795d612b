package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// idler is a contestant with plugins for which there is nothing to do.
type idler struct {
	*contender
	registered int
	before     proc.Usage
	at         time.Time
}

// benchP5 measures the CPU time, per minute, of a manager with plugins registered for which there is nothing to do, beside that of a
// Go process that does nothing. All idle at the same time, except the kubelet. The window of a round is the period in which the runtime of
// Go makes an idle process collect its garbage, so that each has this in it once.
func benchP5(b testing.TB) {
	rounds, window, kubeletWindow, sizes := 10, 2*time.Minute, 20*time.Second, []int{1000, 5000}
	// How long it takes until the registrations have no more effect: the runtime of Go returns memory to the system for some time.
	settle := 15 * time.Second
	if small(b) {
		rounds, window, kubeletWindow, sizes, settle = 1, 2*time.Second, 2*time.Second, []int{100}, 0
	}
	measure := func(idlers []*idler, window time.Duration) {
		<-time.After(settle)
		for range rounds {
			for _, i := range idlers {
				i.before, i.at = ask[proc.Usage](i.process, "Manager.Usage"), time.Now()
			}
			<-time.After(window)
			for _, i := range idlers {
				used := ask[proc.Usage](i.process, "Manager.Usage").CPU - i.before.CPU
				record(b, fmt.Sprintf("P5/registered=%d/%s", i.registered, i.name), 1,
					metrics{"cpu-ms/min", float64(used.Microseconds()) / 1e3 / time.Since(i.at).Minutes()})
			}
		}
		for _, i := range idlers {
			i.stop()
		}
	}
	var idlers []*idler
	for _, n := range sizes {
		idlers = append(idlers, &idler{contender: contend(b, "idle", 0), registered: n})
		for _, name := range []string{"watcher", "runtime"} {
			idlers = append(idlers, &idler{contender: contend(b, name, n), registered: n})
		}
	}
	measure(idlers, window)
	for _, n := range sizes {
		measure([]*idler{{contender: contend(b, kubelet, n), registered: n}}, kubeletWindow)
	}
}
