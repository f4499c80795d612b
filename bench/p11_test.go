package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
)

// benchP11 measures calls to a plugin by 1 and by 64 callers: on a connection of the host's own to a plugin of grpc-go alone ("bare")
// and to one of package sdk ("host"), and on a shared connection that the registry dispenses ("launcher"). On the
// socket pair a call is one byte there and back, one at a time.
func benchP11(b testing.TB) {
	rounds, calls := 10, map[int]int{1: 4000, 64: 25_600}
	if small(b) {
		rounds, calls = 1, map[int]int{1: 100, 64: 640}
	}
	contestants := open(b, "bare", "bare-socketpair", "host", "launcher", goPlugin, goPluginMTLS, "ttrpc")
	for _, l := range contestants {
		l.launch(1)
	}
	for _, callers := range []int{1, 64} {
		warm := min(1, rounds/2)
		for round := range warm + rounds {
			turns(contestants, round, func(l launching) {
				var each float64
				l.call("Launcher.Calls", launch.Load{Callers: callers, Calls: calls[callers]}, &each)
				if round >= warm {
					record(b, fmt.Sprintf("P11/callers=%d/%s", callers, l.name), calls[callers],
						metrics{"µs/call", each / 1e3, "calls/s", 1e9 / each})
				}
			})
		}
	}
	endAll(contestants)
}
