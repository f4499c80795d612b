package dirwatch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestModel changes a tree at random, in steps and in bursts, with events alone and with scans alone, and compares the facts with the tree
// after every burst.
func TestModel(t *testing.T) {
	for name, setup := range map[string]func(*rig){
		"events": func(r *rig) { r.w.scanInterval = time.Hour },
		"scans": func(r *rig) {
			r.quick()
			r.w.open = func() (*notifier, error) { return nil, os.ErrInvalid }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				r := newRig(t, "r", "s")
				setup(r)
				defer os.RemoveAll(r.dir)
				r.do("mkdir r; mkdir s; mkdir out")
				r.change(rt)
				r.start()
				defer r.stop()
				r.settle()
				for range rapid.IntRange(1, 4).Draw(rt, "bursts") {
					r.change(rt)
					r.settle()
				}
			})
		})
	}
}

// change does a few random things. Many fail, as they should.
func (r *rig) change(rt *rapid.T) {
	dirs := []string{"", "a", "b", "a/b", "a/a", ".h", "a/.h"}
	names := []string{"x", "y", "a", "b", ".x", ".h"}
	path := func(label string) string {
		root := rapid.SampledFrom([]string{"r", "r", "s", "out"}).Draw(rt, label+" root")
		return filepath.Join(r.dir, root, rapid.SampledFrom(dirs).Draw(rt, label+" dir"), rapid.SampledFrom(names).Draw(rt, label))
	}
	roots := []string{filepath.Join(r.dir, "r"), filepath.Join(r.dir, "s"), filepath.Join(r.dir, "out")}
	for range rapid.IntRange(1, 12).Draw(rt, "changes") {
		what := rapid.SampledFrom([]string{"sock", "sock", "sock", "mkdir", "mkdir", "rm", "rmall", "mv", "mv", "mv", "replace", "file", "ln"}).
			Draw(rt, "what")
		p := path("path")
		if slices.Contains(roots, p) {
			continue
		}
		switch what {
		case "sock":
			_ = makeSocket(p)
		case "mkdir":
			_ = os.MkdirAll(p, 0o755)
		case "rm":
			_ = os.Remove(p)
		case "rmall":
			_ = os.RemoveAll(p)
		case "mv":
			_ = os.Rename(p, path("to"))
		case "ln":
			_ = os.Link(p, path("to"))
		case "replace":
			next := filepath.Join(r.dir, "next")
			if err := makeSocket(next); err == nil && os.Rename(next, p) != nil {
				_ = os.Remove(next)
			}
		case "file":
			_ = os.WriteFile(p, nil, 0o644)
		default:
			panic(fmt.Sprint("no such change: ", what))
		}
	}
}
