package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// contender is a contestant that runs, with a plugin directory of its own.
type contender struct {
	name string
	*process
	sockets Sockets
}

// contend starts a contestant on an empty plugin directory and returns when it watches.
func contend(b *testing.B, name string) contender {
	b.Helper()
	root := b.TempDir()
	c := contender{name: name, sockets: Sockets{Dir: filepath.Join(root, "plugins"), Staging: filepath.Join(root, "staging")}}
	for _, dir := range []string{c.sockets.Dir, c.sockets.Staging} {
		if err := os.Mkdir(dir, 0o750); err != nil {
			b.Fatal(err)
		}
	}
	c.process = start(b, name, c.sockets.Dir)
	c.call("Manager.Ready", None(false), new(None))
	return c
}

// BenchmarkP1 measures the time from the moment at which a plugin listens on its socket to the call of RegisterPlugin ("register") and to
// the moment at which the plugin is told that it is registered ("told"), in microseconds. The plugin makes its socket in the plugin
// directory ("listen"), or elsewhere and moves it there ("rename").
func BenchmarkP1(b *testing.B) {
	rounds := 200
	if testing.Short() {
		rounds = 5
	}
	for _, staged := range []bool{false, true} {
		appearance := "listen"
		if staged {
			appearance = "rename"
		}
		register, told := measureP1(b, staged, rounds)
		for _, c := range contestants {
			b.Run(fmt.Sprintf("%s/%s", appearance, c.name), func(b *testing.B) {
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(quantile(register[c.name], 0.5), "register-p50-µs")
				b.ReportMetric(quantile(register[c.name], 0.99), "register-p99-µs")
				b.ReportMetric(quantile(told[c.name], 0.5), "told-p50-µs")
				b.ReportMetric(quantile(told[c.name], 0.99), "told-p99-µs")
			})
		}
	}
}

// measureP1 returns the microseconds to RegisterPlugin and to the status by contestant.
func measureP1(b *testing.B, staged bool, rounds int) (register, told map[string][]float64) {
	b.Helper()
	plugins := start(b, rolePlugins)
	defer plugins.stop()
	var contenders []contender
	for _, c := range contestants {
		contenders = append(contenders, contend(b, c.name))
	}
	register, told = map[string][]float64{}, map[string][]float64{}
	// The first rounds warm up.
	const warm = 3
	for round := range warm + rounds {
		for turn := range contenders {
			// Each one goes first as often as any other.
			c := contenders[(round+turn)%len(contenders)]
			sockets := c.sockets
			sockets.Staged = staged
			sockets.Names = []string{fmt.Sprintf("%s-%d", c.name, round)}
			toRegister, toTold := appear(plugins, c, sockets)
			if round >= warm {
				register[c.name] = append(register[c.name], toRegister)
				told[c.name] = append(told[c.name], toTold)
			}
		}
	}
	for _, c := range contenders {
		c.stop()
	}
	return register, told
}

// appear has one plugin come and go, and returns the microseconds from its listening to RegisterPlugin and to its status.
func appear(plugins *process, c contender, sockets Sockets) (toRegister, toTold float64) {
	name := sockets.Names[0]
	if sockets.Staged {
		plugins.call("Plugins.Prepare", sockets, new(None))
	}
	var appeared Appearance
	plugins.call("Plugins.Appear", sockets, &appeared)
	var registered int64
	c.call("Manager.Registered", name, &registered)
	plugins.call("Plugins.Vanish", sockets, new(None))
	c.call("Manager.Gone", name, new(None))
	return float64(registered-appeared.Listening) / 1e3, float64(appeared.Told-appeared.Listening) / 1e3
}
