package bench

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
	"github.com/patchbay-dev/patchbay/bench/internal/syscalls"
)

// benchP21 counts the system calls of a registration, of a launch with one call and the stop, and of a call on a connection that exists, in
// the contestant's process and in its plugins: all, those that are futex, and those in which epoll returned events. They are counted by
// strace and by perf, where these are there.
func benchP21(b testing.TB) {
	rounds := 3
	if small(b) {
		rounds = 1
	}
	for _, by := range tracers(b) {
		t := tracing{b, syscalls.Tracers[by]}
		for _, w := range works {
			contestants := w.contestants
			if small(b) {
				contestants, w.few, w.many = contestants[1:2], 1, 3
			}
			for round := range rounds {
				turns(contestants, round, func(name string) {
					each := w.each(t, name)
					record(b, fmt.Sprintf("P21/by=%s/work=%s/%s", by, w.name, name), w.many-w.few, metrics{
						"syscalls", each.host.all(""), "futex", each.host.all("futex"), "epoll-events", each.host[syscalls.Events],
						"plugin-syscalls", each.plugins.all(""), "plugin-futex", each.plugins.all("futex"),
						"plugin-epoll-events", each.plugins[syscalls.Events],
					})
				})
			}
		}
	}
}

// tracers returns what can trace a process here. The benchmark is skipped if nothing can.
func tracers(b testing.TB) (names []string) {
	b.Helper()
	idle := start(b, "idle", b.TempDir())
	defer idle.stop()
	var errs []error
	for _, name := range []string{"strace", "perf"} {
		trace, err := syscalls.Tracers[name](b.Context(), idle.cmd.Process.Pid, b.TempDir())
		if err == nil {
			names = append(names, name)
			_, err = trace.Detach()
		}
		if errors.Is(err, syscalls.ErrUnavailable) {
			errs = append(errs, err)
		} else if err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(errs...); len(names) == 0 {
		skip(b, err)
	} else if err != nil {
		b.Log(err)
	}
	return names
}

// work is what system calls are counted of. It is done few times and many times, and the difference is without what is done once.
type work struct {
	name        string
	contestants []string
	few, many   int
	count       func(t tracing, contestant string, n int) counted
}

var works = []work{
	{"registration", []string{"floor", "watcher", "runtime", "floor-http2", kubelet}, 100, 1000, countRegistrations},
	{"launch", []string{"bare", "launcher", "launcher-state", "host", goPlugin, "ttrpc"}, 6, 27, countLaunches},
	{"call", []string{"bare", "launcher", "host", goPlugin, "ttrpc"}, 100, 1000, countCalls},
}

// counted are the system calls of a contestant's process, of its plugins, and of its other processes.
type counted struct{ host, plugins, others counts }

// counts are system calls by name.
type counts map[string]float64

// each returns the system calls of a contestant for each time that it does the work.
func (w work) each(t tracing, contestant string) counted {
	t.Helper()
	few, many := w.count(t, contestant, w.few), w.count(t, contestant, w.many)
	each := func(few, many counts) counts {
		difference := counts{}
		for name, n := range many {
			difference[name] = (n - few[name]) / float64(w.many-w.few)
		}
		return difference
	}
	return counted{each(few.host, many.host), each(few.plugins, many.plugins), each(few.others, many.others)}
}

// countRegistrations counts the system calls of a manager and of its plugins while n of these appear and are registered, first of the
// manager and then of the plugins: a process that is traced is slow, and those that communicate with it wait.
func countRegistrations(t tracing, contestant string, n int) counted {
	t.Helper()
	count := func(traced func(*contender) *process) counts {
		c := prepare(t, contestant)
		sockets := c.named(true, names("plugin", n)...)
		c.plugins.call("Plugins.Prepare", sockets, new(proc.None))
		c.start()
		all := t.calls(traced(c), func() {
			c.plugins.call("Plugins.Appear", sockets, new(Appearance))
			c.call("Manager.Settled", n, new(proc.None))
		})
		c.stop()
		return sum(all)
	}
	return counted{
		host:    count(func(c *contender) *process { return c.process }),
		plugins: count(func(c *contender) *process { return c.plugins }),
	}
}

// countLaunches counts the system calls of n times a launch, a call and a stop.
func countLaunches(t tracing, contestant string, n int) counted {
	t.Helper()
	return countLaunched(t, contestant, n, func(l launching) {
		for range n {
			l.call("Launcher.First", l.program, new(int64))
		}
	})
}

// countCalls counts the system calls of a launch and n calls by one caller.
func countCalls(t tracing, contestant string, n int) counted {
	t.Helper()
	return countLaunched(t, contestant, 1, func(l launching) {
		l.launch(1)
		l.call("Launcher.Calls", launch.Load{Callers: 1, Calls: n}, new(float64))
	})
}

// countLaunched counts the system calls of a host and its plugins while it launches some. perf does not follow a thread that begins while
// perf attaches: then another process is traced.
func countLaunched(t tracing, contestant string, launched int, do func(l launching)) counted {
	t.Helper()
	for range 5 {
		l := open(t, contestant)[0]
		// A host that answers has the threads that it starts with.
		ask[proc.Footprint](l.process, "Launcher.Footprint")
		all := t.calls(l.process, func() { do(l) })
		l.stop()
		var plugins, others []*syscalls.Calls
		executed := 0
		for _, c := range all[1:] {
			switch {
			case c.Program == "": // about to execute one
				plugins = append(plugins, c)
			case strings.HasSuffix(l.program, "/"+c.Program):
				plugins = append(plugins, c)
				executed++
			default:
				others = append(others, c)
			}
		}
		if executed == launched {
			return counted{sum(all[:1]), sum(plugins), sum(others)}
		}
	}
	t.Fatalf("the plugins of %s are not traced", contestant)
	return counted{}
}

// tracing is a benchmark that traces processes.
type tracing struct {
	testing.TB
	attach syscalls.Tracer
}

// calls returns the system calls of a process while something is done, and of the processes that it starts.
func (t tracing) calls(p *process, do func()) []*syscalls.Calls {
	t.Helper()
	trace, err := t.attach(t.Context(), p.cmd.Process.Pid, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	do()
	all, err := trace.Detach()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sum(all []*syscalls.Calls) counts {
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
