package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// BenchmarkP2 measures what it takes until all plugins are registered and told, when many sockets that serve already are moved into the
// plugin directory one after the other without a pause: wall time from the first move, CPU time of the manager's process, and its peak
// memory. The figures are medians of the rounds; each round is a new process.
func BenchmarkP2(b *testing.B) {
	benchBulk(b, func(c *contender, names []string) (s span) {
		sockets := c.named(true, names...)
		c.plugins.call("Plugins.Prepare", sockets, new(proc.None))
		c.start()
		c.pause()
		s.manager, s.plugins = ask[proc.Usage](c.process, "Manager.Usage"), ask[proc.Usage](c.plugins, "Plugins.Usage")
		var appeared Appearance
		c.plugins.call("Plugins.Appear", sockets, &appeared)
		s.began, s.ended = appeared.Listening, appeared.Told
		return s
	})
}

// BenchmarkP3 measures the same for plugins whose sockets are there when the manager starts, from the moment at which it does; the start of
// its process does not count.
func BenchmarkP3(b *testing.B) {
	benchBulk(b, func(c *contender, names []string) (s span) {
		c.plugins.call("Plugins.Prepare", c.there(names), new(proc.None))
		s.plugins = ask[proc.Usage](c.plugins, "Plugins.Usage")
		c.start()
		c.plugins.call("Plugins.Told", names, &s.ended)
		s.manager, s.began = ask[proc.Usage](c.process, "Manager.UsageBefore"), ask[int64](c.process, "Manager.Began")
		return s
	})
}

// span is the time in which many plugins were registered, in nanoseconds of [proc.Now], and what the processes had used before.
type span struct {
	began, ended     int64
	manager, plugins proc.Usage
}

// bulk is what the registration of many plugins took, by round.
type bulk struct {
	wall, cpu, plugins, memory []float64 // ms, ms, ms, MB
}

// benchBulk reports what it takes, for each size and contestant, to register plugins of the names.
func benchBulk(b *testing.B, register func(c *contender, names []string) span) {
	b.Helper()
	rounds, sizes := 5, []int{1000, 5000}
	if testing.Short() {
		rounds, sizes = 1, []int{100}
	}
	contestants := []string{"floor", "floor-http2", "watcher", "runtime", kubelet}
	for _, n := range sizes {
		results := map[string]*bulk{}
		for _, name := range contestants {
			results[name] = &bulk{}
		}
		for round := range rounds {
			turns(contestants, round, func(name string) {
				c := prepare(b, name)
				s := register(c, names("plugin", n))
				c.call("Manager.Settled", n, new(proc.None))
				results[name].add(s, ask[proc.Usage](c.process, "Manager.Usage"), ask[proc.Usage](c.plugins, "Plugins.Usage"))
				c.stop()
			})
		}
		for _, name := range contestants {
			r := results[name]
			b.Logf("%d/%s by round: wall %.0f ms, CPU %.0f ms, CPU of the plugins %.0f ms, peak memory %.1f MB",
				n, name, r.wall, r.cpu, r.plugins, r.memory)
			wall, cpu, memory := r.medians()
			floorWall, floorCPU, _ := results["floor"].medians()
			_, _, kubeletMemory := results[kubelet].medians()
			report(b, fmt.Sprintf("%d/%s", n, name), metrics{
				"wall-ms", wall, "cpu-ms", cpu, "plugins-cpu-ms", quantile(r.plugins, 0.5), "peak-MB", memory,
			}.goals(name, "wall/goal", wall/(0.6*floorWall), "cpu/goal", cpu/(0.6*floorCPU), "peak/goal", memory/(0.3*kubeletMemory)))
		}
	}
}

// add adds a round, at whose end the processes have used that much.
func (r *bulk) add(s span, manager, plugins proc.Usage) {
	r.wall = append(r.wall, float64(s.ended-s.began)/1e6)
	r.cpu = append(r.cpu, float64((manager.CPU-s.manager.CPU).Microseconds())/1e3)
	r.plugins = append(r.plugins, float64((plugins.CPU-s.plugins.CPU).Microseconds())/1e3)
	r.memory = append(r.memory, float64(manager.PeakMemory)/1e6)
}

func (r *bulk) medians() (wall, cpu, memory float64) {
	return quantile(r.wall, 0.5), quantile(r.cpu, 0.5), quantile(r.memory, 0.5)
}
