package bench

import (
	"bufio"
	"bytes"
	"debug/elf"
	"debug/gosym"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// step is a moment on the way from the launch to the first call: the kernel notes when a function of the host's program, or of the plugin's,
// is entered.
type step struct{ name, function string }

const own = "github.com/patchbay-dev/patchbay/"

// steps are the moments of a contestant, those of its host and those of its plugin. The first and the last are of the host.
var steps = map[string]struct{ host, plugin []step }{
	"bare": {[]step{
		{"begin", own + "bench.bare.Launch"}, {"fork", "syscall.forkExec"}, {"connect", own + "bench.dial"},
		{"call", own + "pluginwatcher/example_plugin_apis/v1beta1.(*exampleClient).GetExampleInfo"}, {"end", own + "bench.barePlugin.Stop"},
	}, []step{
		{"main", "main.main"}, {"serve", "google.golang.org/grpc.(*Server).Serve"},
	}},
	"launcher-state": {[]step{
		{"begin", own + "bench.(*launcherHost).Launch"}, {"launch", own + "host.(*Host).launch"}, {"fork", "syscall.forkExec"},
		{"bind", own + "internal/sock.(*Made).Bind"}, {"dial", own + "internal/discover/pipeline.(*transport).dial"},
		{"validate", own + "internal/reconciler.(*Reconciler).validate"},
		{"stage", own + "dynamicplugins.storeKeeper.StagePlugins"}, {"tell", own + "internal/registration.(*Client).Notify"},
		{"publish", own + "dynamicplugins.(*stage).Publish"}, {"dispense", own + "dynamicplugins.(*Store).DispensePlugin"},
		{"call", own + "pluginwatcher/example_plugin_apis/v1beta1.(*exampleClient).GetExampleInfo"}, {"end", own + "bench.launchedPlugin.Stop"},
	}, []step{
		{"main", "main.main"}, {"listen", own + "internal/sock.TakeMade"}, {"serve", "google.golang.org/grpc.(*Server).Serve"},
		{"told", own + "sdk.(*registration).NotifyRegistrationStatus"},
	}},
}

// benchSteps measures when each step of P10 is reached, and how long it takes until the next one, in other launches than those of P10: each
// step costs a microsecond more. It needs root, for the probes of the kernel.
func benchSteps(b testing.TB) {
	rounds := 200
	if small(b) {
		rounds = 3
	}
	const tracing = "/sys/kernel/tracing"
	if err := unix.Access(filepath.Join(tracing, "uprobe_events"), unix.W_OK); err != nil {
		skip(b, fmt.Errorf("no probes: %w", err))
	}
	names := slices.Sorted(maps.Keys(steps))
	contestants := open(b, names...)
	defer endAll(contestants)
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	group := fmt.Sprint("patchbay", os.Getpid())
	var events strings.Builder
	stepOf := map[string]string{} // the contestant and the step of a probe
	for i, l := range contestants {
		probe := func(program string, list []step) {
			offsets := offsetsOf(b, program)
			for _, s := range list {
				at, found := offsets[s.function]
				if !found {
					b.Fatalf("%s has no function %s", program, s.function)
				}
				id := fmt.Sprintf("s%d_%s", i, s.name)
				stepOf[id] = s.name
				fmt.Fprintf(&events, "p:%s/%s %s:%#x\n", group, id, program, at)
			}
		}
		probe(self, steps[l.name].host)
		probe(l.program, steps[l.name].plugin)
	}
	trace := newTrace(b, tracing, group, events.String())
	for round := range rounds {
		turns(contestants, round, func(l launching) { l.call("Launcher.First", l.program, new(int64)) })
	}
	reached := trace.read(b)
	for i, l := range contestants {
		recordSteps(b, l.name, fmt.Sprintf("s%d_", i), reached, stepOf)
	}
}

// recordSteps prints the steps of a contestant in the order in which they are reached.
func recordSteps(b testing.TB, name, prefix string, reached []moment, stepOf map[string]string) {
	b.Helper()
	at := map[string][]float64{}
	var launch map[string]float64
	var began time.Duration
	for _, m := range reached {
		step, is := stepOf[m.probe]
		if !is || !strings.HasPrefix(m.probe, prefix) {
			continue
		}
		if step == "begin" {
			launch, began = map[string]float64{}, m.at
		}
		if _, again := launch[step]; launch == nil || again {
			continue
		}
		launch[step] = float64(m.at-began) / float64(time.Microsecond)
		if step == "end" {
			for step, µs := range launch {
				at[step] = append(at[step], µs)
			}
			launch = nil
		}
	}
	median := func(step string) float64 { return quantile(at[step], 0.5) }
	order := slices.SortedFunc(maps.Keys(at), func(p, q string) int { return int(median(p)*1000) - int(median(q)*1000) })
	for i, step := range order {
		next := median(order[min(i+1, len(order)-1)])
		record(b, fmt.Sprintf("Steps/of=%s/%s", name, step), len(at[step]), metrics{"at-µs", median(step), "next-µs", next - median(step)})
	}
}

// moment is when a function was entered.
type moment struct {
	probe string
	at    time.Duration
}

// trace is an instance of the kernel's tracing with probes of its own.
type trace struct{ dir string }

func newTrace(b testing.TB, tracing, group, events string) trace {
	b.Helper()
	t := trace{filepath.Join(tracing, "instances", group)}
	set := func(path, value string, flags int) {
		file, err := os.OpenFile(path, os.O_WRONLY|flags, 0)
		if err == nil {
			_, err = file.WriteString(value)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(t.dir, "events", group, "enable"), []byte("0"), 0)
		if err := os.Remove(t.dir); err != nil {
			b.Error(err)
		}
		for line := range strings.Lines(events) {
			set(filepath.Join(tracing, "uprobe_events"), "-:"+strings.Fields(line)[0][2:]+"\n", os.O_APPEND)
		}
	})
	for line := range strings.Lines(events) {
		set(filepath.Join(tracing, "uprobe_events"), line, os.O_APPEND)
	}
	set(filepath.Join(t.dir, "trace_clock"), "mono", 0)
	set(filepath.Join(t.dir, "events", group, "enable"), "1", 0)
	return t
}

// read returns the moments so far, in order: "    comm-123   [000] .....  12.345678: probe: (0x…)".
func (t trace) read(b testing.TB) (reached []moment) {
	b.Helper()
	raw, err := os.ReadFile(filepath.Join(t.dir, "trace"))
	if err != nil {
		b.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		for i := 1; i+1 < len(fields); i++ {
			seconds, err := strconv.ParseFloat(strings.TrimSuffix(fields[i], ":"), 64)
			if err == nil && strings.HasSuffix(fields[i], ":") && strings.HasSuffix(fields[i+1], ":") {
				reached = append(reached, moment{strings.TrimSuffix(fields[i+1], ":"), time.Duration(seconds * float64(time.Second))})
				break
			}
		}
	}
	slices.SortStableFunc(reached, func(p, q moment) int { return int(p.at - q.at) })
	return reached
}

// offsetsOf returns where in its file each function of a Go program begins, which it says also when it is stripped.
func offsetsOf(b testing.TB, program string) map[string]uint64 {
	b.Helper()
	file, err := elf.Open(program)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	text, lines := file.Section(".text"), file.Section(".gopclntab")
	if text == nil || lines == nil {
		b.Fatalf("%s is no program of Go", program)
	}
	raw, err := lines.Data()
	if err != nil {
		b.Fatal(err)
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(raw, text.Addr))
	if err != nil {
		b.Fatal(err)
	}
	offsets := map[string]uint64{}
	for _, f := range table.Funcs {
		offsets[f.Name] = f.Entry - text.Addr + text.Offset
	}
	return offsets
}
