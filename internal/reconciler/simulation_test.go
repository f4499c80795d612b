package reconciler_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/plugin"
)

type (
	cacheID    = plugin.SocketID
	pluginInfo = dynamicplugins.PluginInfo
)

var (
	simFirst   = flag.Uint64("simulate.first", 1, "the first seed of TestSimulation")
	simSeeds   = flag.Uint64("simulate.seeds", 0, "the number of seeds of TestSimulation; 0 is what make test runs")
	simFigures = flag.String("simulate.figures", "", "a file into which TestSimulation writes how often it took each row and pair of rows")
	simTrace   = flag.Bool("simulate.trace", false, "TestSimulation writes down what happens with the first seed")
)

// TestSimulation disturbs worlds in every way, each as its seed has it, and sees that the handlers are called only as the documented state
// machine allows, that plugins are told what they must be told and nothing else, that the registry, its events and the disk say what is so,
// that no step leads to work without end, and that everything ends as it should when the disturbances end.
func TestSimulation(t *testing.T) {
	n := *simSeeds
	if n == 0 {
		n = simulations
	}
	if *simTrace {
		n = 1
	}
	f, failed := campaign(*simFirst, n)
	for _, s := range failed {
		t.Error(explain(s))
	}
	if n >= 20_000 {
		for row := range rowsOfTable {
			if f.Rows[row] == 0 {
				t.Errorf("%s: that row was never taken", rowText(row))
			}
		}
	}
	if *simTrace {
		var b strings.Builder
		simulate(draw(*simFirst), newFigures(), written(&b))
		t.Log(b.String())
	}
	t.Log(f.text(n))
	if *simFigures != "" {
		if err := os.WriteFile(*simFigures, []byte(f.lines(n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// campaign runs the scenarios of n seeds on all processors, and returns the first few scripts that fail.
func campaign(first, n uint64, options ...func(*model)) (*figures, []script) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	all := newFigures()
	var failed []script
	var mu sync.Mutex
	var workers sync.WaitGroup
	next := first
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			f := newFigures()
			for {
				mu.Lock()
				seed := next
				next++
				stop := seed >= first+n || len(failed) >= 3
				mu.Unlock()
				if stop {
					break
				}
				if s := draw(seed); len(simulate(s, f, options...)) > 0 {
					mu.Lock()
					failed = append(failed, s)
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(f)
		})
	}
	workers.Wait()
	return all, failed
}

// explain says what is wrong with a script, and gives the shortest one of which the same is true.
func explain(s script, options ...func(*model)) string {
	wrong := simulate(s, newFigures(), options...)
	if len(wrong) == 0 {
		return fmt.Sprintf("seed %d failed once and passes now: the simulation is not repeatable", s.seed)
	}
	short := shorten(s, time.Now().Add(20*time.Second), options...)
	var trace strings.Builder
	shortly := simulate(short, newFigures(), append(options, written(&trace))...)
	lines := strings.Split(trace.String(), "\n")
	if at := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "WRONG: ") }); at >= 0 {
		lines = lines[:at+1]
	}
	return fmt.Sprintf("seed %d (%s) fails: %s\n\nThe shortest script that was found, for reconciler/testdata/scenarios.txtar:\n\n%s\n%s\n\n%s",
		s.seed, s.mix,
		strings.Join(wrong, "\n"), short, strings.Join(shortly, "\n"), strings.Join(lines[max(0, len(lines)-150):], "\n"))
}

// shorten leaves out what is not needed for a script to fail.
func shorten(s script, until time.Time, options ...func(*model)) script {
	fails := func(candidate script) (script, bool) {
		for i := range uint64(4) {
			candidate.seed = s.seed + i*1_000_003
			if len(simulate(candidate, newFigures(), options...)) > 0 {
				return candidate, true
			}
		}
		return candidate, false
	}
	for size := len(s.steps) / 2; size > 0 && time.Now().Before(until); {
		shorter := false
		for at := 0; at < len(s.steps) && time.Now().Before(until); {
			candidate := s
			candidate.steps = slices.Delete(slices.Clone(s.steps), at, min(at+size, len(s.steps)))
			if found, is := fails(candidate); is {
				s, shorter = found, true
			} else {
				at += size
			}
		}
		if !shorter || size > 1 {
			size /= 2
		}
	}
	for _, word := range slices.Sorted(maps.Keys(s.set)) {
		candidate := s
		candidate.set = maps.Clone(s.set)
		delete(candidate.set, word)
		if found, is := fails(candidate); is {
			s = found
		}
	}
	return s
}

func (f *figures) add(other *figures) {
	for row, n := range other.Rows {
		f.Rows[row] += n
	}
	for pair, n := range other.Pairs {
		f.Pairs[pair] += n
	}
	f.Steps += other.Steps
}

// text says which rows of the table were taken, and how many pairs.
func (f *figures) text(n uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d scenarios, %d steps, %d rows, %d pairs of rows\n", n, f.Steps, len(f.Rows), len(f.Pairs))
	for _, row := range machine.Table {
		bare := row
		bare.If = ""
		fmt.Fprintf(&b, "%10d %s → %s, %s: %s\n", f.Rows[bare], row.From, row.To, row.On, row.If)
	}
	return b.String()
}

// lines are the figures, to be added up.
func (f *figures) lines(n uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\tscenarios\n%d\tsteps\n", n, f.Steps)
	for row, times := range f.Rows {
		fmt.Fprintf(&b, "%d\trow: %s\n", times, rowText(row))
	}
	for pair, times := range f.Pairs {
		fmt.Fprintf(&b, "%d\tpair: %s; then %s\n", times, rowText(pair[0]), rowText(pair[1]))
	}
	return b.String()
}

func rowText(row machine.Row) string { return fmt.Sprintf("%s → %s, %s", row.From, row.To, row.On) }

// inTable says whether the table has a transition.
func inTable(row machine.Row) bool {
	if row.To == machine.Gone {
		return slices.Contains(machine.Leaving, row.On)
	}
	return rowsOfTable[row]
}

var rowsOfTable = func() map[machine.Row]bool {
	rows := map[machine.Row]bool{}
	for _, row := range machine.Table {
		row.If = ""
		rows[row] = true
	}
	return rows
}()

func stack() string { return string(debug.Stack()) }

// traceStep writes an input of the machine and its effects down, and takes over what the machine has seen from then on.
func (m *model) traceStep(in machine.Input, effects []machine.Effect) {
	switch in := in.(type) {
	case machine.Complete:
		m.life.synced, m.life.syncedAt = true, m.sim.elapsed
		clear(m.life.unseen)
	case machine.Released:
		m.life.released(lane{in.Key.Type, in.Key.Name})
	case machine.Changed:
		m.taken++ // a walk that began since the facts were told did not know of them
		for _, change := range in {
			if change.Info != nil {
				delete(m.life.unseen, change.Info.Socket)
			}
		}
	}
	m.life.follows(in, effects)
	if m.trace == nil {
		return
	}
	m.note("input: %T%s", in, show(reflect.ValueOf(in)))
	for _, effect := range effects {
		m.note("    %T%s", effect, show(reflect.ValueOf(effect)))
	}
}

// follows knows who is being asked, and what is to be removed.
func (l *life) follows(in machine.Input, effects []machine.Effect) {
	if answered, is := in.(machine.Answered); is {
		l.asking[answered.Ref].asking--
	}
	for _, effect := range effects {
		switch e := effect.(type) {
		case machine.Ask:
			l.asking[e.Ref] = l.m.owners[e.Socket]
			l.asking[e.Ref].asking++
		case machine.Forget:
			key := lane{e.Type, e.Name}
			l.removals[key] = append(l.removals[key], e.ID)
		}
	}
}

// show writes a value the same each time, whatever its address.
func show(v reflect.Value) string {
	if v.IsValid() && v.CanInterface() {
		switch known := v.Interface().(type) {
		case error:
			return fmt.Sprintf("%q", known.Error())
		case time.Time:
			return fmt.Sprint(known.UnixNano())
		case fmt.Stringer:
			return known.String()
		}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return "nil"
		}
		return show(v.Elem())
	case reflect.Struct:
		var fields []string
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				fields = append(fields, v.Type().Field(i).Name+":"+show(v.Field(i)))
			}
		}
		return "{" + strings.Join(fields, " ") + "}"
	case reflect.Slice:
		var all []string
		for i := range v.Len() {
			all = append(all, show(v.Index(i)))
		}
		return "[" + strings.Join(all, " ") + "]"
	default:
		return fmt.Sprintf("%+v", v)
	}
}
