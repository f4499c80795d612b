package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// BenchmarkP14 measures what a plugin costs the host's process, registered or launched, and an admission plugin that is not used: the
// difference between a process with plugins and one without, divided by their number, after all memory that is not in use has gone back to
// the system.
func BenchmarkP14(b *testing.B) {
	registered, launched, idle := []int{1000, 5000}, 50, 10_000
	if testing.Short() {
		registered, launched, idle = []int{100}, 3, 100
	}
	managing := []string{"watcher", "runtime", kubelet}
	empty := map[string]proc.Footprint{}
	for _, name := range managing {
		empty[name] = measureRegistered(b, name, 0)
	}
	for _, n := range registered {
		for _, name := range managing {
			report(b, fmt.Sprintf("registered=%d/%s", n, name), holds(empty[name], measureRegistered(b, name, n), n))
		}
	}
	peer := 0.0
	for _, l := range open(b, "bare", goPlugin, goPluginMTLS, "host", "launcher", "launcher-state") {
		// What the first plugin of a process costs is not the plugin's.
		l.launch(1)
		before := ask[proc.Footprint](l.process, "Launcher.Footprint")
		l.launch(launched)
		after := ask[proc.Footprint](l.process, "Launcher.Footprint")
		l.stop()
		live := float64(after.Live - before.Live)
		if l.name == goPlugin {
			peer = live
		}
		report(b, fmt.Sprintf("launched=%d/%s", launched, l.name),
			holds(before, after, launched).goals(l.name, "live/goal", live/peer))
	}
	p := start(b, roleAdmissions, build(b, "plugins/admission"))
	before := ask[proc.Footprint](p, "Admissions.Footprint")
	p.call("Admissions.Hold", idle, new(proc.None))
	after := ask[proc.Footprint](p, "Admissions.Footprint")
	p.stop()
	report(b, fmt.Sprintf("admission-idle=%d", idle),
		append(holds(before, after, idle), "live/goal", float64(after.Live-before.Live)/1e4/float64(idle)))
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

func measureRegistered(b *testing.B, name string, registered int) proc.Footprint {
	b.Helper()
	c := contend(b, name, registered)
	defer c.stop()
	return ask[proc.Footprint](c.process, "Manager.Footprint")
}
