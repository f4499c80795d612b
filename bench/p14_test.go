package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// BenchmarkP14 measures what a registered plugin costs the manager's process: the difference between a process with plugins registered and
// one without, divided by their number, after all memory that is not in use has gone back to the system.
func BenchmarkP14(b *testing.B) {
	sizes := []int{1000, 5000}
	if testing.Short() {
		sizes = []int{100}
	}
	contestants := []string{"watcher", "runtime", kubelet}
	empty := map[string]proc.Footprint{}
	for _, name := range contestants {
		empty[name] = measureP14(b, name, 0)
	}
	for _, n := range sizes {
		for _, name := range contestants {
			none, full := empty[name], measureP14(b, name, n)
			report(b, fmt.Sprintf("%d/%s", n, name), metrics{
				"resident-kB/plugin", float64(full.Resident-none.Resident) / 1e3 / float64(n),
				"live-kB/plugin", float64(full.Live-none.Live) / 1e3 / float64(n),
				"goroutines/plugin", float64(full.Goroutines-none.Goroutines) / float64(n),
				"descriptors/plugin", float64(full.Descriptors-none.Descriptors) / float64(n),
				"empty-MB", float64(none.Resident) / 1e6,
			})
		}
	}
}

func measureP14(b *testing.B, name string, registered int) proc.Footprint {
	b.Helper()
	c := contend(b, name, registered)
	defer c.stop()
	return ask[proc.Footprint](c.process, "Manager.Footprint")
}
