package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// benchList measures how long it takes to list all plugins, with as many registered as the name says.
func benchList(b testing.TB) {
	rounds, sizes := 100, []int{10, 100, 1000, 5000, 10_000}
	if small(b) {
		rounds, sizes = 1, []int{100}
	}
	keepers := keep(b, false, "memory", "patchbay", "nomad")
	filled := 0
	for _, n := range sizes {
		fill(keepers, filled, n)
		filled = n
		took := map[string][]float64{}
		for round := range rounds {
			turns(keepers, round, func(k keeper) {
				var ns int64
				k.call("Registry.List", n, &ns)
				took[k.name] = append(took[k.name], micros(0, ns))
			})
		}
		for _, k := range keepers {
			recordSamples(b, fmt.Sprintf("List/registered=%d/%s", n, k.name), "list", took[k.name])
		}
	}
	stop(keepers)
}

// benchRestore measures how long it takes until a registry that is started again has the plugins that its file holds. The floor opens a
// bbolt file and reads as many values of 200 bytes. Each round is a new process.
func benchRestore(b testing.TB) {
	rounds, sizes := 10, []int{10, 100, 1000, 5000, 10_000}
	if small(b) {
		rounds, sizes = 1, []int{100}
	}
	for _, n := range sizes {
		names := []string{"bbolt-group", "patchbay"}
		dirs := map[string]string{}
		for _, name := range names {
			dirs[name] = b.TempDir()
			k := keeper{start(b, name, dirs[name]), name}
			k.call("Registry.Fill", registry.Burst{Count: n, Callers: min(64, n)}, new(proc.None))
			k.stop()
		}
		for round := range rounds {
			turns(names, round, func(name string) {
				k := keeper{start(b, name, dirs[name]), name}
				var listed int64
				opened := ask[int64](k.process, "Registry.Opened")
				k.call("Registry.List", n, &listed)
				k.stop()
				record(b, fmt.Sprintf("Restore/registered=%d/%s", n, name), 1, metrics{"restore-ms", float64(opened+listed) / 1e6})
			})
		}
	}
}
