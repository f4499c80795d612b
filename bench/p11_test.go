package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
)

// BenchmarkP11 measures calls to a plugin by 1 and by 64 callers: on a connection of the host's own to a plugin of grpc-go alone ("bare")
// and to one of package sdk ("host"), and on a shared connection that the registry dispenses ("launcher").
func BenchmarkP11(b *testing.B) {
	rounds, calls := 15, map[int]int{1: 5000, 64: 32_000}
	if testing.Short() {
		rounds, calls = 1, map[int]int{1: 100, 64: 640}
	}
	contestants := open(b, "bare", "host", "launcher", goPlugin, goPluginMTLS)
	for _, l := range contestants {
		l.launch(1)
	}
	for _, callers := range []int{1, 64} {
		took := map[string][]float64{}
		warm := min(1, rounds/2)
		for round := range warm + rounds {
			turns(contestants, round, func(l launching) {
				var each float64
				l.call("Launcher.Calls", launch.Load{Callers: callers, Calls: calls[callers]}, &each)
				if round >= warm {
					took[l.name] = append(took[l.name], each)
				}
			})
		}
		floor := quantile(took["bare"], 0.5)
		for _, l := range contestants {
			each := quantile(took[l.name], 0.5)
			report(b, fmt.Sprintf("callers=%d/%s", callers, l.name),
				metrics{"µs/call", each / 1e3, "calls/s", 1e9 / each}.goals(l.name, "call/goal", each/(1.05*floor)))
		}
	}
	endAll(contestants)
}
