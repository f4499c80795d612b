package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// benchP8 measures the time and the allocations of a call of DispensePlugin, whose dispenser returns what it is given, with as many
// registered as the name says, by one goroutine and by two at once. The floor is a lookup in a map behind an atomic pointer.
func benchP8(b testing.TB) {
	rounds, sizes, calls := 10, []int{10, 100, 1000, 5000, 10_000}, 1_000_000
	if small(b) {
		rounds, sizes, calls = 1, []int{100}, 100_000
	}
	keepers := keep(b, false, "memory", "patchbay", "nomad")
	filled := 0
	for _, n := range sizes {
		fill(keepers, filled, n)
		filled = n
		for _, cores := range []int{1, 2} {
			for round := range rounds {
				turns(keepers, round, func(k keeper) {
					var cost registry.Cost
					k.call("Registry.Dispense", registry.Loop{Plugin: n / 2, Cores: cores, Calls: calls}, &cost)
					record(b, fmt.Sprintf("P8/cores=%d/registered=%d/%s", cores, n, k.name), calls,
						metrics{"dispense-ns", cost.Nanoseconds, "allocs/dispense", cost.Allocations})
				})
			}
		}
	}
	stop(keepers)
}
