package bench

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/patchbay-dev/patchbay/bench/internal/syscalls"
)

var (
	syscallsWork = flag.String("syscalls.work", "registration", "what BenchmarkSyscalls counts the calls of: registration, launch or call")
	syscallsOf   = flag.String("syscalls.of", "watcher", "the contestants of BenchmarkSyscalls")
	syscallsBy   = flag.String("syscalls.by", "strace", "what traces them: strace or perf")
)

// BenchmarkSyscalls is P21 for who wants to know which system calls there are: it prints a table of them by name.
func BenchmarkSyscalls(b *testing.B) {
	at := slices.IndexFunc(works, func(w work) bool { return w.name == *syscallsWork })
	if at < 0 {
		b.Fatalf("there is no work %q", *syscallsWork)
	}
	trace, ok := syscalls.Tracers[*syscallsBy]
	if !ok {
		b.Fatalf("there is no tracer %q", *syscallsBy)
	}
	var columns []counts
	heads := []string{"of each " + *syscallsWork}
	for contestant := range strings.SplitSeq(*syscallsOf, ",") {
		each := works[at].each(tracing{b, trace}, contestant)
		columns, heads = append(columns, each.host, each.plugins), append(heads, contestant, "its plugins")
		if len(each.others) > 0 {
			columns, heads = append(columns, each.others), append(heads, "its others")
		}
	}
	if err := printCounts(os.Stdout, heads, columns); err != nil {
		b.Fatal(err)
	}
}

// printCounts prints the system calls by name, those of which there are most in a column first.
func printCounts(w io.Writer, heads []string, columns []counts) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	printLine := func(name string, of func(counts) float64) {
		fmt.Fprint(table, name, "\t")
		for _, c := range columns {
			fmt.Fprintf(table, "%.2f\t", of(c))
		}
		fmt.Fprintln(table)
	}
	fmt.Fprintf(table, "\n%s\t\n", strings.Join(heads, "\t"))
	printLine("all", func(c counts) float64 { return c.all("") })
	printLine("futex", func(c counts) float64 { return c.all("futex") })
	most := counts{}
	for _, c := range columns {
		for name, n := range c {
			most[name] = max(most[name], n)
		}
	}
	byMost := func(x, y string) int { return cmp.Or(cmp.Compare(most[y], most[x]), strings.Compare(x, y)) }
	for _, name := range slices.SortedFunc(maps.Keys(most), byMost) {
		if most[name] >= 0.01 {
			printLine(name, func(c counts) float64 { return c[name] })
		}
	}
	return table.Flush()
}
