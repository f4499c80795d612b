package bench

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/manager"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

var (
	stormSizes      = flag.String("storm.sizes", "1000,5000", "how many sockets BenchmarkStorm moves in")
	stormRounds     = flag.Int("storm.rounds", 5, "how often")
	stormContenders = flag.String("storm.contenders", "floor,watcher,runtime", "who finds them")
	stormProfile    = flag.String("storm.profile", "", "a directory for profiles; empty for none")
)

// BenchmarkStorm is P2 for who wants to know where the time goes: processor time by kind, allocations and profiles, for each plugin. Unlike
// wall times, these say something on a busy machine too.
func BenchmarkStorm(b *testing.B) {
	if *stormProfile != "" {
		b.Setenv(manager.ProfileVariable, *stormProfile)
	}
	for _, size := range strings.Split(*stormSizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil {
			b.Fatal(err)
		}
		for round := range *stormRounds {
			turns(strings.Split(*stormContenders, ","), round, func(name string) { storm(b, name, n) })
		}
	}
}

// storm has one contestant register n plugins, and records what each cost.
func storm(b *testing.B, name string, n int) {
	b.Helper()
	c := prepare(b, name)
	sockets := c.named(true, names("plugin", n)...)
	c.plugins.call("Plugins.Prepare", sockets, new(proc.None))
	c.start()
	before := ask[proc.Costs](c.process, "Manager.Costs")
	var appeared Appearance
	c.plugins.call("Plugins.Appear", sockets, &appeared)
	c.call("Manager.Settled", n, new(proc.None))
	after := ask[proc.Costs](c.process, "Manager.Costs")
	each := func(before, after int64) float64 { return float64(after-before) / float64(n) }
	record(b, fmt.Sprintf("Storm/plugins=%d/%s", n, name), n, metrics{
		"wall-ms", float64(appeared.Told-appeared.Listening) / 1e6,
		"cpu-µs", each(int64(before.User+before.System), int64(after.User+after.System)) / 1e3,
		"system-µs", each(int64(before.System), int64(after.System)) / 1e3,
		"allocs", each(before.Objects, after.Objects),
		"alloc-B", each(before.Bytes, after.Bytes),
		"switches", each(before.Switches, after.Switches),
		"faults", each(before.Faults, after.Faults),
		"peak-MB", float64(ask[proc.Usage](c.process, "Manager.Usage").PeakMemory) / 1e6,
	})
	c.stop()
}
