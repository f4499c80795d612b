package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// benchP2 measures what it takes until all plugins are registered and told, when many sockets that serve already are moved into the
// plugin directory one after the other without a pause: wall time from the first move, CPU time of the manager's process, and its peak
// memory. Each round is a new process.
func benchP2(b testing.TB) {
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

// benchP3 measures the same for plugins whose sockets are there when the manager starts, from the moment at which it does; the start of
// its process does not count.
func benchP3(b testing.TB) {
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

// benchBulk measures, for each size and contestant, what it takes to register plugins of the names.
func benchBulk(b testing.TB, register func(c *contender, names []string) span) {
	b.Helper()
	rounds, sizes := 10, []int{10, 100, 1000, 5000}
	if small(b) {
		rounds, sizes = 1, []int{100}
	}
	for _, n := range sizes {
		for round := range rounds {
			turns([]string{"floor", "floor-http2", "watcher", "runtime", kubelet}, round, func(name string) {
				c := prepare(b, name)
				s := register(c, names("plugin", n))
				c.call("Manager.Settled", n, new(proc.None))
				manager, plugins := ask[proc.Usage](c.process, "Manager.Usage"), ask[proc.Usage](c.plugins, "Plugins.Usage")
				c.stop()
				record(b, fmt.Sprintf("%s/plugins=%d/%s", rowOf(b), n, name), 1, metrics{
					"wall-ms", float64(s.ended-s.began) / 1e6,
					"cpu-ms", float64((manager.CPU - s.manager.CPU).Microseconds()) / 1e3,
					"plugins-cpu-ms", float64((plugins.CPU - s.plugins.CPU).Microseconds()) / 1e3,
					"peak-MB", float64(manager.PeakMemory) / 1e6,
				})
			})
		}
	}
}
