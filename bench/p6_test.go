package bench

import (
	"fmt"
	"math"
	"slices"
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
func keep(b *testing.B, durable bool, names ...string) []keeper {
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

// BenchmarkP6 measures how long one caller waits for the registration of a plugin that is new, with as many registered as the name says.
// The floor is one bbolt transaction that puts 200 bytes into a file with as many values.
func BenchmarkP6(b *testing.B) {
	rounds, sizes := 300, []int{10, 100, 1000, 10_000}
	if testing.Short() {
		rounds, sizes = 5, []int{10, 100}
	}
	keepers := keep(b, true, "bbolt", "patchbay", "nomad")
	medians := map[string][]float64{}
	for i, n := range sizes {
		fill(keepers, slices.Max(append([]int{0}, sizes[:i]...)), n)
		took := map[string][]float64{}
		for round := range rounds {
			turns(keepers, round, func(k keeper) { took[k.name] = append(took[k.name], k.register(1, 1)) })
		}
		for _, k := range keepers {
			t := took[k.name]
			medians[k.name] = append(medians[k.name], quantile(t, 0.5))
			report(b, fmt.Sprintf("registered=%d/%s", n, k.name),
				metrics{"register-p50-µs", quantile(t, 0.5), "register-p99-µs", quantile(t, 0.99)}.goals(k.name,
					"p50/goal", quantile(t, 0.5)/(1.2*quantile(took["bbolt"], 0.5))))
		}
	}
	for _, k := range keepers {
		report(b, "growth/"+k.name, metrics{"exponent", exponent(sizes, medians[k.name])})
	}
	stop(keepers)
}

// exponent fits y = c·xᵉ and returns e: 0 for what does not grow, 1 for what grows with x.
func exponent(xs []int, ys []float64) float64 {
	var sx, sy, sxx, sxy float64
	for i := range xs {
		x, y := math.Log(float64(xs[i])), math.Log(ys[i])
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	n := float64(len(xs))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// BenchmarkP7 measures how many plugins that are new many callers register in a second, at 10,000 registered. The floors are ways to
// commit changes of a bbolt file together; the goal counts from the best of them. Nomad has fewer changes to make, after the others.
func BenchmarkP7(b *testing.B) {
	rounds, nomadRounds, registered, count, nomadCount := 10, 3, 10_000, 4096, 512
	if testing.Short() {
		rounds, nomadRounds, registered, count, nomadCount = 1, 1, 100, 256, 256
	}
	floors := []string{"bbolt-group", "bbolt-batch50µs", "bbolt-batch200µs", "bbolt-batch1ms"}
	keepers := keep(b, true, append(slices.Clone(floors), "patchbay", "nomad")...)
	fill(keepers, 0, registered)
	for _, callers := range []int{64, 256} {
		rates := map[string][]float64{}
		measure := func(k keeper, count int) { rates[k.name] = append(rates[k.name], 1e6/k.register(callers, count)) }
		for round := range rounds {
			turns(keepers[:len(keepers)-1], round, func(k keeper) { measure(k, count) })
		}
		for range nomadRounds {
			measure(keepers[len(keepers)-1], nomadCount)
		}
		best := 0.0
		for _, floor := range floors {
			best = max(best, quantile(rates[floor], 0.5))
		}
		for _, k := range keepers {
			r := rates[k.name]
			report(b, fmt.Sprintf("callers=%d/%s", callers, k.name),
				metrics{"register/s", quantile(r, 0.5), "min/s", slices.Min(r), "max/s", slices.Max(r)}.goals(k.name,
					"goal/rate", 0.8*best/quantile(r, 0.5)))
		}
	}
	stop(keepers)
}
