//go:build linux

package failpoints

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

type group struct {
	title    string
	failures []failure
}

// with returns the points that are armed.
func (f *failure) with() []Arm {
	if f.arms == nil {
		return []Arm{once(f.point)}
	}
	return f.arms
}

func TestPoints(t *testing.T) {
	for _, g := range groups() {
		for _, f := range g.failures {
			t.Run(f.point, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				s.armed = f.with()
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
				failing = append(failing, a.Point)
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

%d failures at the %d points where a test can make the daemon fail, and what happens after each. Each failure gets its own daemon and, if that
is already running, a neighbour: another plugin that must not be affected, so it keeps its instance and gets no event. A failure
occurs once unless the table says otherwise. Afterwards every living plugin is registered exactly once and answers through its stable
socket, and no condition is degraded; the same holds after a restart. When all plugins have gone, the state is empty, and no file, goroutine or
descriptor is left. A plugin that appears gets no error other than those in the table. This page is generated from the tests in
[integration/failpoints](../../integration/failpoints).

Other tests make real things fail: etcd in [integration/fleet](../../integration/fleet), the device of the state file in
[integration/crash](../../integration/crash), plugins in [integration/hostile](../../integration/hostile) and in the tests of the handlers.

A point is a comment in the source that begins with `+"`// gofail:`"+`. The tests compile copies of the files in which these comments are code; no
other build contains it. `+"`make failpoints`"+` runs all of them, and some of the [pairs](#pairs).
`, n, len(where))
	cell := func(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
	for _, g := range groups() {
		fmt.Fprintf(&b, "\n## %s\n\n| point | where | what fails | what happens | reported as |\n|---|---|---|---|---|\n", g.title)
		for _, f := range g.failures {
			var said []string
			for _, n := range f.said {
				said = append(said, n.where+" `"+strings.TrimSpace(n.text)+"`")
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", f.point, where[f.point], cell(f.fails), cell(f.happens), cell(strings.Join(said, "; ")))
		}
	}
	b.WriteString(pairsPage())
	return b.Bytes(), nil
}
