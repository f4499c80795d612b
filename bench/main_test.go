package bench

import (
	"flag"
	"fmt"
	"os"
	"path"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// roleVariable is the environment variable that makes the test binary one of the processes of a benchmark. Its value is one of the roles
// below, or the name of a contestant in registries, hosts or proxied.
const roleVariable = "PATCHBAY_BENCH_ROLE"

const (
	// rolePlugins is the role of the process in which all plugins run.
	rolePlugins = "plugins"
	// roleAdmissions is that of the host of an admission plugin.
	roleAdmissions = "admissions"
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		return
	}
	// A row is one run, which nothing makes longer.
	flag.Parse()
	if err := flag.Set("test.benchtime", "1x"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	resetSignals()
	code := m.Run()
	if err := removePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// rows are the comparisons. The files in results/ have their names.
var rows = []struct {
	name string
	run  func(b testing.TB)
}{
	{"P1", benchP1},
	{"P2", benchP2},
	{"P2-one", onOneProcessor(benchP2)},
	{"P3", benchP3},
	{"P3-one", onOneProcessor(benchP3)},
	{"P4", benchP4},
	{"P5", benchP5},
	{"P6", benchP6},
	{"P7", benchP7},
	{"P8", benchP8},
	{"P9", benchP9},
	{"P10", benchP10},
	{"P10-one", onOneProcessor(benchP10)},
	{"Steps", benchSteps},
	{"P11", benchP11},
	{"P12", benchP12},
	{"P13", benchP13},
	{"P14", benchP14},
	{"P16", benchP16},
	{"P17", benchP17},
	{"P19", benchP19},
	{"P20", benchP20},
	{"P21", benchP21},
	{"List", benchList},
	{"Restore", benchRestore},
	{"Proxy", benchProxy},
}

// BenchmarkRow measures the rows.
func BenchmarkRow(b *testing.B) {
	for _, row := range rows {
		b.Run(row.name, func(b *testing.B) { row.run(b) })
	}
}

// TestRow: every comparison works, small.
func TestRow(t *testing.T) {
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) { row.run(t) })
	}
}

// rowOf returns the name of the row that a benchmark measures.
func rowOf(b testing.TB) string {
	b.Helper()
	return path.Base(b.Name())
}

// small says whether a comparison is made to see that it works, and not for its times.
func small(b testing.TB) bool {
	_, test := b.(*testing.T)
	return test || testing.Short()
}

// skip skips a comparison that cannot be made here, and says why: benchmarks that are skipped print nothing.
func skip(b testing.TB, why error) {
	b.Helper()
	fmt.Fprintf(os.Stderr, "%s: %v\n", b.Name(), why)
	b.Skip(why)
}

// play makes this process one of those of a benchmark until standard input ends. The argument of a contestant is its directory.
func play(role string) error {
	if role == rolePlugins {
		return proc.Serve(newPlugins())
	}
	if role == roleAdmissions {
		return serveAdmissions(os.Args[1])
	}
	if open, ok := registries[role]; ok {
		return registry.Serve(open, os.Args[1])
	}
	if open, ok := hosts[role]; ok {
		return launch.Serve(open, os.Args[1])
	}
	if run, ok := proxied[role]; ok {
		return playProxied(run, os.Args[1])
	}
	return fmt.Errorf("there is no contestant %q", role)
}
