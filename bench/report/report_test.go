package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPage: the page and its charts in docs are those of the results.
func TestPage(t *testing.T) {
	if err := run("../results", "../../docs", "", true, nil); err != nil {
		t.Error(err)
	}
}

// TestFit: the exponent of what grows with a power, and the error of what does not quite.
func TestFit(t *testing.T) {
	xs := []float64{10, 100, 1000, 10_000}
	for _, want := range []float64{0, 0.5, 1} {
		var ys []float64
		for _, x := range xs {
			ys = append(ys, 3*math.Pow(x, want))
		}
		f, ok := fitPower(xs, ys)
		if !ok || math.Abs(f.Exponent-want) > 1e-9 || f.Error > 1e-6 {
			t.Errorf("y = 3·x^%v: %+v, %v", want, f, ok)
		}
	}
	if f, _ := fitPower(xs, []float64{1, 4, 2, 8}); f.Error < 0.05 {
		t.Errorf("the error of what is scattered is %v", f.Error)
	}
	if _, ok := fitPower(xs[:2], xs[:2]); ok {
		t.Error("two points have an exponent")
	}
}

// TestRatio: ratios are made round by round, so that what slows down a whole round changes none of them; and goals are judged by them.
func TestRatio(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	b.WriteString("command: bench/record p6\ngoos: linux\n\n")
	for _, slow := range []string{"1", "2", "10", "3", "1", "1", "5", "1", "1", "1"} {
		b.WriteString("BenchmarkP6/registered=10/bbolt-2 30 " + slow + "00 register-µs\n")
		b.WriteString("BenchmarkP6/registered=10/patchbay-2 30 " + slow + "50 register-µs\n")
	}
	if err := os.WriteFile(filepath.Join(dir, "p6.txt"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	results, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.File != "p6" {
			if r.Measured() {
				t.Errorf("%s was measured", r.File)
			}
			continue
		}
		ratio, ok := r.ratio(key{"registered=10", "patchbay", "register-µs"}, key{"registered=10", "bbolt", "register-µs"})
		if !ok || ratio.Median != 1.5 || ratio.High != 1.5 || ratio.Low >= 1.5 {
			t.Errorf("ratio: %+v, %v", ratio, ok)
		}
		if v := r.verdicts(); len(v) != 1 || v[0].met || v[0].share.Median != 1.25 {
			t.Errorf("verdicts: %+v", v)
		}
	}
}
