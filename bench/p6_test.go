package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// fresh is the number of the first plugin that comes and goes: more than any that stays.
const fresh = 100_000

// keeper is a registry that runs.
type keeper struct {
	*process
	name string
}

// keep starts registries whose state is on the disk, or in memory only.
func keep(b testing.TB, durable bool, names ...string) []keeper {
	b.Helper()
	var keepers []keeper
	for _, name := range names {
		dir := ""
		if durable {
			dir = b.TempDir()
		}
		keepers = append(keepers, keeper{start(b, name, dir), name})
	}
	return keepers
}

// fill registers plugins from up to but not including to.
func fill(keepers []keeper, from, to int) {
	for _, k := range keepers {
		k.call("Registry.Fill", registry.Burst{First: from, Count: to - from, Callers: min(64, to-from)}, new(proc.None))
	}
}

func stop(keepers []keeper) {
	for _, k := range keepers {
		k.stop()
	}
}

// register registers plugins, which do not stay, and returns the microseconds for each.
func (k keeper) register(callers, count int) float64 {
	k.b.Helper()
	var took int64
	k.call("Registry.Register", registry.Burst{First: fresh, Count: count, Callers: callers}, &took)
	return float64(took) / 1e3 / float64(count)
}

// benchP6 measures how long one caller waits for the registration of a plugin that is new, with as many registered as the name says.
// The floor is one bbolt transaction that puts 200 bytes into a file with as many values.
func benchP6(b testing.TB) {
	rounds, sizes := 300, []int{10, 100, 1000, 5000, 10_000}
	if small(b) {
		rounds, sizes = 5, []int{10, 100}
	}
	keepers := keep(b, true, "bbolt", "patchbay", "nomad")
	filled := 0
	for _, n := range sizes {
		fill(keepers, filled, n)
		filled = n
		took := map[string][]float64{}
		for round := range rounds {
			turns(keepers, round, func(k keeper) { took[k.name] = append(took[k.name], k.register(1, 1)) })
		}
		for _, k := range keepers {
			recordSamples(b, fmt.Sprintf("P6/registered=%d/%s", n, k.name), "register", took[k.name])
		}
	}
	stop(keepers)
}

// benchP7 measures how many plugins that are new many callers register in a second, at 10,000 registered. The floors are ways to commit
// changes of a bbolt file together. Nomad has fewer changes to make.
func benchP7(b testing.TB) {
	rounds, registered, count, nomadCount := 10, 10_000, 4096, 256
	if small(b) {
		rounds, registered, count, nomadCount = 1, 100, 256, 256
	}
	keepers := keep(b, true, "bbolt-group", "bbolt-batch50µs", "bbolt-batch200µs", "bbolt-batch1ms", "patchbay", "nomad")
	fill(keepers, 0, registered)
	for _, callers := range []int{64, 256} {
		for round := range rounds {
			turns(keepers, round, func(k keeper) {
				n := count
				if k.name == "nomad" {
					n = nomadCount
				}
				record(b, fmt.Sprintf("P7/callers=%d/%s", callers, k.name), n, metrics{"register/s", 1e6 / k.register(callers, n)})
			})
		}
	}
	stop(keepers)
}
