package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/manager"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// latencies are samples of one contestant, in microseconds.
type latencies struct {
	register, told []float64
}

// BenchmarkP1 measures the time from the moment at which a plugin listens on its socket to the call of RegisterPlugin ("register") and to
// the moment at which the plugin is told that it is registered ("told"), with as many plugins registered already as the name says. The
// plugin makes its socket in the plugin directory ("listen"), or elsewhere and moves it there ("rename").
func BenchmarkP1(b *testing.B) {
	rounds, kubeletRounds, registered := 200, 20, []int{0, 5000}
	if testing.Short() {
		rounds, kubeletRounds, registered = 5, 2, []int{0, 50}
	}
	quick := []string{"floor", "floor-http2", floorRaw, "watcher", "runtime"}
	for _, n := range registered {
		for _, appearance := range []string{"listen", "rename"} {
			results := map[string]*latencies{}
			measureP1(b, quick, n, appearance == "rename", rounds, results)
			measureP1(b, []string{kubelet}, n, appearance == "rename", kubeletRounds, results)
			floor := results["floor"].register
			for _, name := range append(quick, kubelet) {
				r := results[name]
				report(b, fmt.Sprintf("registered=%d/%s/%s", n, appearance, name), metrics{
					"register-p50-µs", quantile(r.register, 0.5), "register-p99-µs", quantile(r.register, 0.99),
					"told-p50-µs", quantile(r.told, 0.5), "told-p99-µs", quantile(r.told, 0.99),
				}.goals(name,
					"p50/goal", quantile(r.register, 0.5)/(0.8*quantile(floor, 0.5)),
					"p99/goal", quantile(r.register, 0.99)/(3*quantile(floor, 0.99))))
			}
		}
	}
}

func measureP1(b *testing.B, contestants []string, registered int, staged bool, rounds int, results map[string]*latencies) {
	b.Helper()
	var contenders []*contender
	for _, name := range contestants {
		contenders = append(contenders, contend(b, name, registered))
		results[name] = &latencies{}
	}
	// The first rounds warm up.
	warm := min(3, rounds/2)
	for round := range warm + rounds {
		turns(contenders, round, func(c *contender) {
			c.pause()
			register, told := appear(c, c.named(staged, fmt.Sprint(round)), 1)
			if round >= warm {
				r := results[c.name]
				r.register, r.told = append(r.register, register), append(r.told, told)
			}
			vanish(c, fmt.Sprint(round))
		})
	}
	for _, c := range contenders {
		c.stop()
	}
}

// appear has one plugin come, as the nth of its name, and returns the microseconds from its listening to RegisterPlugin and to its status.
func appear(c *contender, sockets Sockets, nth int) (register, told float64) {
	c.b.Helper()
	if sockets.Staged {
		c.plugins.call("Plugins.Prepare", sockets, new(proc.None))
	}
	var appeared Appearance
	c.plugins.call("Plugins.Appear", sockets, &appeared)
	var registered int64
	c.call("Manager.Registered", manager.Registration{Name: sockets.Names[0], Nth: nth}, &registered)
	return micros(appeared.Listening, registered), micros(appeared.Listening, appeared.Told)
}

// vanish has the plugins of a name go, and returns the microseconds from the removal of the socket to DeRegisterPlugin.
func vanish(c *contender, name string) float64 {
	c.b.Helper()
	var removed, deregistered int64
	c.plugins.call("Plugins.Remove", c.named(false, name), &removed)
	c.call("Manager.Gone", name, &deregistered)
	c.plugins.call("Plugins.Stop", []string{name}, new(proc.None))
	return micros(removed, deregistered)
}

func micros(from, to int64) float64 { return float64(to-from) / 1e3 }
