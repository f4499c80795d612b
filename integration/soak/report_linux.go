package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// The sections of the table.
const (
	operations = "operations"
	faults     = "faults injected"
	invariants = "invariants checked"
)

// report counts what was done and found. It is safe for concurrent use.
type report struct {
	out   io.Writer
	began time.Time

	mu         sync.Mutex
	counts     map[string]map[string]int // by section and kind
	violations []string
	usages     []usage
}

// usage is what the daemon had at one moment.
type usage struct {
	when  string
	after time.Duration
	life  int
	rig.Usage
}

func newReport(out io.Writer) *report {
	return &report{out: out, began: time.Now(), counts: map[string]map[string]int{operations: {}, faults: {}, invariants: {}}}
}

func (r *report) count(section, kind string) { r.add(section, kind, 1) }

func (r *report) add(section, kind string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[section][kind] += n
}

// violation keeps and prints what is wrong.
func (r *report) violation(format string, args ...any) {
	text := fmt.Sprintf("%8.3f s  VIOLATION  %s", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, text)
	fmt.Fprintln(r.out, text)
}

func (r *report) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%8.3f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *report) use(when string, life int, u rig.Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usages = append(r.usages, usage{when, time.Since(r.began), life, u})
}

// table writes everything. It returns an error if there were violations.
func (r *report) table() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, section := range []string{operations, faults, invariants} {
		total := 0
		for _, n := range r.counts[section] {
			total += n
		}
		fmt.Fprintf(w, "\n%d\t %s\n", total, section)
		for _, kind := range slices.Sorted(maps.Keys(r.counts[section])) {
			fmt.Fprintf(w, "%d\t   %s\n", r.counts[section][kind], kind)
		}
	}
	_ = w.Flush()
	fmt.Fprintf(r.out, "\nThe daemon, at rest, with the same plugins each time:\n")
	w = tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "when\tafter\tits start number\tresident MB\theap MB\tgoroutines\tdescriptors")
	for _, u := range r.usages {
		fmt.Fprintf(w, "%s\t%v\t%d\t%.1f\t%.1f\t%d\t%d\n", u.when, u.after.Round(time.Second), u.life, float64(u.RSS)/1e6, float64(u.Heap)/1e6,
			u.Goroutines, u.Descriptors)
	}
	_ = w.Flush()
	fmt.Fprintf(r.out, "\n%d violations\n", len(r.violations))
	for _, v := range r.violations {
		fmt.Fprintln(r.out, v)
	}
	if n := len(r.violations); n > 0 {
		return fmt.Errorf("%d violations", n)
	}
	return nil
}
