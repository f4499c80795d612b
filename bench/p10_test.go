package bench

import "testing"

// BenchmarkP10 measures the time from the launch of a plugin until its first call is answered. The contestants whose names end in
// "socketpair" do so without gRPC. In "host-ticket" the plugin calls its host.
func BenchmarkP10(b *testing.B) {
	rounds := 200
	if testing.Short() {
		rounds = 3
	}
	contestants := open(b, "bare", "host", "host-ticket", "launcher", "launcher-state", "bare-socketpair", "host-socketpair",
		goPlugin, goPluginMTLS)
	took := map[string][]float64{}
	// The first rounds warm up: the programs are not in the page cache, and a host starts its watchdog with its first plugin.
	warm := min(3, rounds/2)
	for round := range warm + rounds {
		turns(contestants, round, func(l launching) {
			var ns int64
			l.call("Launcher.First", l.program, &ns)
			if round >= warm {
				took[l.name] = append(took[l.name], micros(0, ns))
			}
		})
	}
	endAll(contestants)
	floor := quantile(took["bare"], 0.5)
	for _, l := range contestants {
		p50 := quantile(took[l.name], 0.5)
		report(b, l.name, metrics{"first-call-p50-µs", p50, "first-call-p99-µs", quantile(took[l.name], 0.99)}.
			goals(l.name, "p50/goal", p50/(1.1*floor)))
	}
}
