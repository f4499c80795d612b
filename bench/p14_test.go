package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// benchP14 measures what a plugin costs the host's process, registered or launched, and an admission plugin that is not used: the
// difference between a process with plugins and one without, divided by their number, after all memory that is not in use has gone back to
// the system.
func benchP14(b testing.TB) {
	rounds, registered, launched, idle := 10, []int{10, 100, 1000, 5000}, 50, 10_000
	if small(b) {
		rounds, registered, launched, idle = 1, []int{100}, 3, 100
	}
	managing := []string{"watcher", "runtime", kubelet}
	launching := []string{"bare", goPlugin, goPluginMTLS, "host", "launcher", "launcher-state"}
	for round := range rounds {
		turns(managing, round, func(name string) {
			empty := measureRegistered(b, name, 0)
			for _, n := range registered {
				record(b, fmt.Sprintf("P14/registered=%d/%s", n, name), n, holds(empty, measureRegistered(b, name, n), n))
			}
		})
		turns(launching, round, func(name string) {
			l := open(b, name)[0]
			// What the first plugin of a process costs is not the plugin's.
			l.launch(1)
			before := ask[proc.Footprint](l.process, "Launcher.Footprint")
			l.launch(launched)
			after := ask[proc.Footprint](l.process, "Launcher.Footprint")
			l.stop()
			record(b, fmt.Sprintf("P14/launched=%d/%s", launched, name), launched, holds(before, after, launched))
		})
		p := start(b, roleAdmissions, build(b, "plugins/admission"))
		before := ask[proc.Footprint](p, "Admissions.Footprint")
		p.call("Admissions.Hold", idle, new(proc.None))
		after := ask[proc.Footprint](p, "Admissions.Footprint")
		p.stop()
		record(b, fmt.Sprintf("P14/admission-idle=%d/host", idle), idle, holds(before, after, idle))
	}
}

// holds is what each of n plugins holds.
func holds(none, full proc.Footprint, n int) metrics {
	return metrics{
		"resident-kB/plugin", float64(full.Resident-none.Resident) / 1e3 / float64(n),
		"live-kB/plugin", float64(full.Live-none.Live) / 1e3 / float64(n),
		"goroutines/plugin", float64(full.Goroutines-none.Goroutines) / float64(n),
		"descriptors/plugin", float64(full.Descriptors-none.Descriptors) / float64(n),
		"empty-MB", float64(none.Resident) / 1e6,
	}
}

func measureRegistered(b testing.TB, name string, registered int) proc.Footprint {
	b.Helper()
	c := contend(b, name, registered)
	defer c.stop()
	return ask[proc.Footprint](c.process, "Manager.Footprint")
}
