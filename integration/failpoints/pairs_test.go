//go:build linux

package failpoints

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// passedFile names the pairs that have passed.
var passedFile = flag.String("pairs", "", "test all pairs but those that this file names, and add those that pass to it; without, a sample")

// pair is a point and what happens besides.
type pair struct {
	name    string
	failure failure
	other   other
}

// first is the other fault of the first failure in the sample. With this one the sample has those pairs that have once found something.
const first = 8

// pairs returns the product of both tables, or the sample: the failures in their order, each with the next one of the others.
func pairs(sample bool) []pair {
	var all []pair
	count, n := map[string]int{}, 0
	for _, g := range groups() {
		for _, f := range g.failures {
			name := f.point
			if count[f.point]++; count[f.point] > 1 {
				name += fmt.Sprintf("-%d", count[f.point])
			}
			for i, o := range others() {
				if !sample || i == (first+n)%len(others()) {
					all = append(all, pair{name + " and " + o.name, f, o})
				}
			}
			n++
		}
	}
	return all
}

func pairsPage() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
## Pairs

Each failure above is combined with each fault below, which begins when the point is armed and lasts half a second: %d pairs. The outcome is the
same as after the failure alone, and the neighbour is not affected. `+"`make failpoints`"+` combines each failure with one of the faults, in turn;
`+"`make pairs`"+` tests all pairs. If the other fault makes a start fail, the start is repeated afterwards and need not reach the point.

| other fault | what it is |
|---|---|
`, len(pairs(false)))
	for _, o := range others() {
		is := o.is
		if o.all {
			is += "; plugins that register meanwhile, after a start the neighbour too, are admitted when it is back"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", o.name, is)
	}
	b.WriteString(`
The clock jump changes files and not the clock, because Linux has no wall clock for a single process: time namespaces cover the monotonic and the
boot clock only, a preloaded library cannot reach a static Go program, and setting the machine's clock would disturb everything else on it.
What a step of the clock itself does is tested in the simulation of the core, whose wall clock is set 5 hours back, 7 hours forward and right
again at random moments while its monotonic clock continues, as on a real machine (` + "`make simulate`" + `).
`)
	return b.String()
}

func TestPairs(t *testing.T) {
	passed := record{path: *passedFile}
	if err := passed.read(); err != nil {
		t.Fatal(err)
	}
	for _, p := range pairs(*passedFile == "") {
		if passed.names[p.name] {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.armed, s.other = p.failure.with(), &p.other
			p.failure.play(s, &p.failure)
			s.finish()
			if len(s.masked) > 0 {
				t.Logf("%s kept the daemon from %v", p.other.name, s.masked)
			}
			if t.Failed() {
				return
			}
			if err := passed.add(p.name); err != nil {
				t.Error(err)
			}
		})
	}
}

// record is a file of pairs that have passed, one a line. Its methods are safe for concurrent use.
type record struct {
	path string

	mu    sync.Mutex
	names map[string]bool
}

func (r *record) read() error {
	r.names = map[string]bool{}
	if r.path == "" {
		return nil
	}
	f, err := os.OpenFile(r.path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		r.names[strings.TrimSpace(lines.Text())] = true
	}
	return lines.Err()
}

func (r *record) add(name string) error {
	if r.path == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, name)
	return err
}
