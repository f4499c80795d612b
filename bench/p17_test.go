package bench

import (
	"fmt"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// benchP17 measures what plugins that are started by the first call cost while nobody calls them: a host with its plugins, of which 5 are
// in use, with 5 and with 500 configured.
func benchP17(b testing.TB) {
	rounds, used := 10, 5
	if small(b) {
		rounds, used = 1, 5
	}
	for round := range rounds {
		turns([]string{"configured-5", "configured-500"}, round, func(name string) {
			l := open(b, name)[0]
			l.launch(used)
			for range 2 { // what is kept for reuse goes with the second collection
				ask[proc.Footprint](l.process, "Launcher.Footprint")
			}
			footprint := ask[proc.Footprint](l.process, "Launcher.Footprint")
			tree, err := proc.ReadTree(l.cmd.Process.Pid)
			if err != nil {
				b.Fatal(err)
			}
			l.stop()
			record(b, fmt.Sprintf("P17/used=%d/%s", used, name), used, metrics{
				"resident-MB", float64(tree.Resident) / 1e6, "shared-MB", float64(tree.Shared) / 1e6, "processes", float64(tree.Processes),
				"host-MB", float64(footprint.Resident) / 1e6, "host-live-MB", float64(footprint.Live) / 1e6, "goroutines", float64(footprint.Goroutines),
				"descriptors", float64(footprint.Descriptors),
			})
		})
	}
}
