package bench

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
	"github.com/patchbay-dev/patchbay/bench/internal/strace"
)

// work is what system calls are counted of. It is done few times and many times, and the difference is without what is done once.
type work struct {
	name        string
	contestants []string
	few, many   int
	count       func(b testing.TB, contestant string, n int) counted
}

// counted are the system calls of a contestant's process, of its plugins, and of its other processes.
type counted struct{ host, plugins, others counts }

// counts are system calls by name.
type counts map[string]float64

var works = []work{
	{"registration", []string{"floor", "floor-http2", "watcher", "runtime", kubelet}, 100, 1000, countRegistrations},
	{"launch", []string{"bare", "host", "launcher", "launcher-state", goPlugin, "ttrpc"}, 6, 27, countLaunches},
	{"call", []string{"bare", "host", "launcher", goPlugin, "ttrpc"}, 100, 1000, countCalls},
}

// each returns the system calls of a contestant for each time that it does the work.
func (w work) each(b testing.TB, contestant string) counted {
	b.Helper()
	few, many := w.count(b, contestant, w.few), w.count(b, contestant, w.many)
	each := func(few, many counts) counts {
		difference := counts{}
		for name, n := range many {
			difference[name] = (n - few[name]) / float64(w.many-w.few)
		}
		return difference
	}
	return counted{each(few.host, many.host), each(few.plugins, many.plugins), each(few.others, many.others)}
}

// countRegistrations counts the system calls of a manager and of its plugins while n of these appear and are registered, one after the
// other: a process that is traced is slow, and those that communicate with it wait.
func countRegistrations(b testing.TB, contestant string, n int) counted {
	b.Helper()
	count := func(traced func(*contender) *process) counts {
		c := prepare(b, contestant)
		sockets := c.named(true, names("plugin", n)...)
		c.plugins.call("Plugins.Prepare", sockets, new(proc.None))
		c.start()
		trace := attach(b, traced(c))
		c.plugins.call("Plugins.Appear", sockets, new(Appearance))
		c.call("Manager.Settled", n, new(proc.None))
		all := detach(b, trace)
		c.stop()
		return sum(all)
	}
	return counted{
		host:    count(func(c *contender) *process { return c.process }),
		plugins: count(func(c *contender) *process { return c.plugins }),
	}
}

// countLaunches counts the system calls of n times a launch, a call and a stop.
func countLaunches(b testing.TB, contestant string, n int) counted {
	b.Helper()
	return countLaunched(b, contestant, func(l launching) {
		for range n {
			l.call("Launcher.First", l.program, new(int64))
		}
	})
}

// countCalls counts the system calls of a launch and n calls by one caller.
func countCalls(b testing.TB, contestant string, n int) counted {
	b.Helper()
	return countLaunched(b, contestant, func(l launching) {
		l.launch(1)
		l.call("Launcher.Calls", launch.Load{Callers: 1, Calls: n}, new(float64))
	})
}

// countLaunched counts the system calls of a host and its plugins while it does something.
func countLaunched(b testing.TB, contestant string, do func(l launching)) counted {
	b.Helper()
	l := open(b, contestant)[0]
	trace := attach(b, l.process)
	do(l)
	all := detach(b, trace)
	l.stop()
	isOther := func(c *strace.Calls) bool { return c.Program != "" && c.Program != l.program }
	plugins := slices.DeleteFunc(slices.Clone(all[1:]), isOther)
	others := slices.DeleteFunc(slices.Clone(all[1:]), func(c *strace.Calls) bool { return !isOther(c) })
	return counted{sum(all[:1]), sum(plugins), sum(others)}
}

// attach traces a process, or skips the benchmark where that is not possible.
func attach(b testing.TB, p *process) *strace.Trace {
	b.Helper()
	trace, err := strace.Attach(b.Context(), p.cmd.Process.Pid, b.TempDir())
	if errors.Is(err, strace.ErrUnavailable) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	return trace
}

func detach(b testing.TB, trace *strace.Trace) []*strace.Calls {
	b.Helper()
	all, err := trace.Detach()
	if err != nil {
		b.Fatal(err)
	}
	return all
}

func sum(all []*strace.Calls) counts {
	s := counts{}
	for _, c := range all {
		for name, n := range c.ByName {
			s[name] += float64(n)
		}
	}
	return s
}

// all returns the number of the system calls whose names have a prefix.
func (c counts) all(prefix string) (n float64) {
	for name, calls := range c {
		if strings.HasPrefix(name, prefix) {
			n += calls
		}
	}
	return n
}

var (
	syscallsWork = flag.String("syscalls.work", "registration", "what BenchmarkSyscalls counts the calls of: registration, launch or call")
	syscallsOf   = flag.String("syscalls.of", "watcher", "the contestants of BenchmarkSyscalls")
)

// BenchmarkSyscalls is P21 for who wants to know which system calls there are: it prints a table of them by name.
func BenchmarkSyscalls(b *testing.B) {
	at := slices.IndexFunc(works, func(w work) bool { return w.name == *syscallsWork })
	if at < 0 {
		b.Fatalf("there is no work %q", *syscallsWork)
	}
	var columns []counts
	heads := []string{"of each " + *syscallsWork}
	for contestant := range strings.SplitSeq(*syscallsOf, ",") {
		each := works[at].each(b, contestant)
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
