package bench

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// BenchmarkP9Wait measures the time from the call of RegisterPlugin to the return of a WaitForPlugin that has been waiting. Nomad looks
// again after 0.2 s, then after 0.4 s and so on up to 5 s, so the waits for it begin up to 3 s earlier.
func BenchmarkP9Wait(b *testing.B) {
	rounds, nomadRounds, nomadWaits := 200, 10, 3*time.Second
	if testing.Short() {
		rounds, nomadRounds, nomadWaits = 5, 1, time.Second
	}
	keepers := keep(b, false, "memory", "patchbay", "nomad")
	took := map[string][]float64{}
	wait := func(k keeper, waits time.Duration) {
		var ns int64
		k.call("Registry.Wait", registry.Waiter{Plugin: fresh, Waits: waits}, &ns)
		took[k.name] = append(took[k.name], float64(ns)/1e3)
	}
	for round := range rounds {
		turns(keepers[:2], round, func(k keeper) { wait(k, time.Millisecond) })
	}
	for range nomadRounds {
		wait(keepers[2], rand.N(nomadWaits))
	}
	for _, k := range keepers {
		t := took[k.name]
		report(b, k.name, metrics{"wait-p50-µs", quantile(t, 0.5), "wait-p99-µs", quantile(t, 0.99)}.goals(k.name,
			"wait/goal", quantile(t, 0.5)/100))
	}
	stop(keepers)
}

// BenchmarkP9Events measures the time from a change until all subscribers have received its event, without and with one more subscriber
// that never reads. The floor sends to a channel of each subscriber. A contestant that a subscriber which does not read brings to a halt
// has fewer events than were made; its metric "events" is how many there were.
func BenchmarkP9Events(b *testing.B) {
	rounds, changes, sizes := 10, 100, []int{1, 10, 100, 10_000}
	if testing.Short() {
		rounds, changes, sizes = 1, 10, []int{1, 10}
	}
	for _, n := range sizes {
		took := map[string][]float64{}
		measure := func(k keeper, stuck, changes int, patience time.Duration) {
			var fanned registry.Fanned
			k.call("Registry.Events", registry.Fan{Subscribers: n, Stuck: stuck, Changes: changes, Patience: patience}, &fanned)
			name := fmt.Sprintf("%s/stuck=%d", k.name, stuck)
			for _, ns := range fanned {
				took[name] = append(took[name], float64(ns)/1e3)
			}
		}
		keepers := keep(b, false, "memory", "patchbay", "nomad")
		for round := range rounds {
			turns(keepers, round, func(k keeper) {
				measure(k, 0, changes, time.Minute)
				if k.name == "patchbay" {
					measure(k, 1, changes, time.Minute)
				}
			})
		}
		measure(keepers[2], 1, changes, 2*time.Second)
		keepers[2].kill()
		stop(keepers[:2])
		floor := quantile(took["memory/stuck=0"], 0.5)
		for _, name := range []string{"memory/stuck=0", "patchbay/stuck=0", "patchbay/stuck=1", "nomad/stuck=0", "nomad/stuck=1"} {
			t := took[name]
			m := metrics{"events", float64(len(t))}
			if len(t) > 0 {
				m = append(m, "event-p50-µs", quantile(t, 0.5), "event-p99-µs", quantile(t, 0.99))
				m = m.goals(strings.Split(name, "/")[0], "event/goal", quantile(t, 0.5)/(2*floor))
			}
			report(b, fmt.Sprintf("subscribers=%d/%s", n, name), m)
		}
	}
}
