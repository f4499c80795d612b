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

// benchP1 measures the time from the moment at which a plugin listens on its socket to the call of RegisterPlugin ("register") and to
// the moment at which the plugin is told that it is registered ("told"), with as many plugins registered already as the name says. The
// plugin makes its socket in the plugin directory ("listen"), or elsewhere and moves it there ("rename").
func benchP1(b testing.TB) {
	rounds, kubeletRounds, registered := 200, 10, []int{0, 10, 100, 1000, 5000}
	if small(b) {
		rounds, kubeletRounds, registered = 5, 2, []int{0, 50}
	}
	for _, n := range registered {
		measureP1(b, []string{"floor", "floor-http2", floorRaw, "watcher", "runtime"}, n, rounds, "listen", "rename")
		measureP1(b, []string{kubelet}, n, kubeletRounds, "rename")
	}
}

func measureP1(b testing.TB, contestants []string, registered, rounds int, appearances ...string) {
	b.Helper()
	var contenders []*contender
	for _, name := range contestants {
		contenders = append(contenders, contend(b, name, registered))
	}
	// The first rounds warm up.
	warm := min(3, rounds/2)
	for _, appearance := range appearances {
		results := map[string]*latencies{}
		for _, name := range contestants {
			results[name] = &latencies{}
		}
		for round := range warm + rounds {
			turns(contenders, round, func(c *contender) {
				c.pause()
				name := fmt.Sprint(appearance, round)
				register, told := appear(c, c.named(appearance == "rename", name), 1)
				if round >= warm {
					r := results[c.name]
					r.register, r.told = append(r.register, register), append(r.told, told)
				}
				vanish(c, name)
			})
		}
		for _, name := range contestants {
			line := fmt.Sprintf("P1/appear=%s/registered=%d/%s", appearance, registered, name)
			recordSamples(b, line, "register", results[name].register)
			recordSamples(b, line, "told", results[name].told)
		}
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
