//go:build linux

package failpoints

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	gofail "go.etcd.io/gofail/runtime"
)

type group struct {
	title    string
	failures []failure
}

// with returns the points that are armed.
func (f *failure) with() []arm {
	if f.arms == nil {
		return []arm{once(f.point)}
	}
	return f.arms
}

func TestPoints(t *testing.T) {
	for _, g := range groups() {
		for _, f := range g.failures {
			t.Run(f.point, func(t *testing.T) {
				s := newScene(t)
				s.armed = f.with()
				t.Cleanup(func() {
					for _, a := range s.armed {
						_ = gofail.Disable(a.point) // again, unless the test was cut short
					}
					if t.Failed() && s.end != nil {
						t.Logf("events: %+v", s.events())
					}
					if err := s.stop(); err != nil {
						t.Error(err)
					}
					if t.Failed() {
						t.Logf("log of the daemon:\n%s", s.log)
					}
				})
				f.play(s, &f)
				s.finish()
			})
		}
	}
}

// TestEveryPointFails compares the table with the source.
func TestEveryPointFails(t *testing.T) {
	files, err := findPoints()
	if err != nil {
		t.Fatal(err)
	}
	var there, failing []string
	for _, m := range files {
		there = append(there, m.points...)
	}
	for _, g := range groups() {
		for _, f := range g.failures {
			for _, a := range f.with() {
				failing = append(failing, a.point)
			}
		}
	}
	slices.Sort(there)
	slices.Sort(failing)
	if failing = slices.Compact(failing); !slices.Equal(there, failing) {
		t.Errorf("the source has the points %v,\nand the table %v", there, failing)
	}
}

func TestDocumentation(t *testing.T) {
	want, err := document()
	if err != nil {
		t.Fatal(err)
	}
	page.Check(t, want)
}

func document() ([]byte, error) {
	files, err := findPoints()
	if err != nil {
		return nil, err
	}
	where := map[string]string{}
	for _, m := range files {
		for _, p := range m.points {
			where[p] = m.path
		}
	}
	n := 0
	for _, g := range groups() {
		n += len(g.failures)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `# Failpoints

What happens after %d failures at the %d points at which a test can have the daemon fail. Each has a daemon of its own and, where that has started
before, another plugin that must not notice: it keeps its instance and has no event. A failure comes once unless the table says otherwise.
In the end each plugin that lives is registered, once, and answers through its stable socket, no condition is degraded, and the same is so
after a restart; when all plugins have gone, the state is empty, and no file, goroutine or descriptor is left. A plugin that appears is told no
error but those in the table. This page is generated from the tests in [integration/failpoints](../../integration/failpoints).

What can fail for real does so in other tests: etcd in [integration/fleet](../../integration/fleet), the device of the state file in
[integration/crash](../../integration/crash), plugins in [integration/hostile](../../integration/hostile) and in those of the handlers.

A point is a comment that begins with `+"`// gofail:`"+` in the source. The tests compile copies of the files in which the comments are code;
nothing else has it. `+"`make failpoints`"+` runs them.
`, n, len(where))
	cell := func(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
	for _, g := range groups() {
		fmt.Fprintf(&b, "\n## %s\n\n| point | where | what fails | what happens | how it is said |\n|---|---|---|---|---|\n", g.title)
		for _, f := range g.failures {
			var said []string
			for _, n := range f.said {
				said = append(said, n.where+" `"+strings.TrimSpace(n.text)+"`")
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", f.point, where[f.point], cell(f.fails), cell(f.happens), cell(strings.Join(said, "; ")))
		}
	}
	return b.Bytes(), nil
}
