package bench

import (
	"fmt"
	"testing"
)

// p2 is one measurement of [BenchmarkP2].
type p2 struct {
	wall, cpu, memory []float64 // ms, ms, MB
}

// BenchmarkP2 measures what it takes until all plugins are registered and told, when many sockets that serve already are moved into the
// plugin directory one after the other without a pause: wall time from the first move, CPU time of the manager's process, and its peak
// memory. The figures are medians of the rounds; each round is a new process.
func BenchmarkP2(b *testing.B) {
	rounds, sizes := 5, []int{1000, 5000}
	if testing.Short() {
		rounds, sizes = 1, []int{100}
	}
	for _, n := range sizes {
		results := map[string]*p2{}
		for round := range rounds {
			for turn := range contestants {
				c := contestants[(round+turn)%len(contestants)]
				if results[c.name] == nil {
					results[c.name] = &p2{}
				}
				measureP2(b, c.name, n, results[c.name])
			}
		}
		for _, c := range contestants {
			r := results[c.name]
			b.Run(fmt.Sprintf("%d/%s", n, c.name), func(b *testing.B) {
				b.Logf("by round: wall %.0f ms, CPU %.0f ms, peak memory %.1f MB", r.wall, r.cpu, r.memory)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(quantile(r.wall, 0.5), "wall-ms")
				b.ReportMetric(quantile(r.cpu, 0.5), "cpu-ms")
				b.ReportMetric(quantile(r.memory, 0.5), "peak-MB")
			})
		}
	}
}

func measureP2(b *testing.B, contestant string, n int, result *p2) {
	b.Helper()
	plugins := start(b, rolePlugins)
	defer plugins.stop()
	c := contend(b, contestant)
	defer c.stop()
	sockets := c.sockets
	sockets.Staged = true
	for i := range n {
		sockets.Names = append(sockets.Names, fmt.Sprint(i))
	}
	plugins.call("Plugins.Prepare", sockets, new(None))
	var before, after Usage
	c.call("Manager.Usage", None(false), &before)
	var appeared Appearance
	plugins.call("Plugins.Appear", sockets, &appeared)
	c.call("Manager.Settled", n, new(None))
	c.call("Manager.Usage", None(false), &after)
	result.wall = append(result.wall, float64(appeared.Told-appeared.Listening)/1e6)
	result.cpu = append(result.cpu, float64((after.CPU-before.CPU).Microseconds())/1e3)
	result.memory = append(result.memory, float64(after.PeakMemory)/1e6)
}
