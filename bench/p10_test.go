package bench

import "testing"

// benchP10 measures the time from the launch of a plugin until its first call is answered. The contestants whose names end in
// "socketpair" do so without gRPC. In "host-ticket" the plugin calls its host.
func benchP10(b testing.TB) {
	rounds := 200
	if small(b) {
		rounds = 3
	}
	contestants := open(b, "bare", "host", "host-ticket", "launcher", "launcher-state", "bare-socketpair", "host-socketpair",
		goPlugin, goPluginMTLS, "ttrpc")
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
	for _, l := range contestants {
		recordSamples(b, rowOf(b)+"/"+l.name, "first-call", took[l.name])
	}
}
