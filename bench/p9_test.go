package bench

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

func benchP9(b testing.TB) {
	benchP9Wait(b)
	benchP9Events(b)
}

// benchP9Wait measures the time from the call of RegisterPlugin to the return of a WaitForPlugin that has been waiting. Nomad looks
// again after 0.2 s, then after 0.4 s and so on up to 5 s, so the waits for it begin up to 3 s earlier.
func benchP9Wait(b testing.TB) {
	rounds, nomadRounds, nomadWaits := 200, 10, 3*time.Second
	if small(b) {
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
		recordSamples(b, "P9/"+k.name, "wait", took[k.name])
	}
	stop(keepers)
}

// benchP9Events measures the time from a change until all subscribers have received its event, without and with one more subscriber
// that never reads. The floor sends to a channel of each subscriber. A contestant that a subscriber which does not read brings to a halt
// has fewer events than were made; its metric "events" is how many there were.
func benchP9Events(b testing.TB) {
	rounds, changes, sizes := 10, 50, []int{1, 10, 100, 1000, 5000, 10_000}
	if small(b) {
		rounds, changes, sizes = 1, 10, []int{1, 10}
	}
	for _, n := range sizes {
		took := map[string][]float64{}
		measure := func(k keeper, stuck, changes int, patience time.Duration) {
			var fanned registry.Fanned
			k.call("Registry.Events", registry.Fan{Subscribers: n, Stuck: stuck, Changes: changes, Patience: patience}, &fanned)
			name := k.name
			if stuck > 0 {
				name += "-stuck"
			}
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
		for _, name := range []string{"memory", "patchbay", "patchbay-stuck", "nomad", "nomad-stuck"} {
			line := fmt.Sprintf("P9/subscribers=%d/%s", n, name)
			record(b, line, 1, metrics{"events", float64(len(took[name]))})
			if len(took[name]) > 0 {
				recordSamples(b, line, "event", took[name])
			}
		}
	}
}
