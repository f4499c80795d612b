package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// BenchmarkP8 measures the time and the allocations of a call of DispensePlugin, whose dispenser returns what it is given, at 10,000
// registered, by one goroutine and by two at once. The floor is a lookup in a map behind an atomic pointer.
func BenchmarkP8(b *testing.B) {
	rounds, registered, calls := 10, 10_000, 2_000_000
	if testing.Short() {
		rounds, registered, calls = 1, 100, 100_000
	}
	keepers := keep(b, false, "memory", "patchbay", "nomad")
	fill(keepers, 0, registered)
	for _, cores := range []int{1, 2} {
		took, allocated := map[string][]float64{}, map[string]float64{}
		for round := range rounds {
			turns(keepers, round, func(k keeper) {
				var cost registry.Cost
				k.call("Registry.Dispense", registry.Loop{Plugin: registered / 2, Cores: cores, Calls: calls}, &cost)
				took[k.name] = append(took[k.name], cost.Nanoseconds)
				allocated[k.name] = cost.Allocations
			})
		}
		for _, k := range keepers {
			t := quantile(took[k.name], 0.5)
			report(b, fmt.Sprintf("cores=%d/%s", cores, k.name),
				metrics{"dispense-ns", t, "allocs/dispense", allocated[k.name]}.goals(k.name, "dispense/goal", t/60))
		}
	}
	stop(keepers)
}
