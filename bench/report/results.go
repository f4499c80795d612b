package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
)

// result is a row with what was measured of it.
type result struct {
	row

	Config [][2]string // the lines "key: value" of the file
	keys   []key       // in the order of the file
	values map[key][]float64
}

// key is one figure of one contestant in one comparison. It has a value for each round.
type key struct{ params, contestant, unit string }

// load reads the results of all rows. One that is not there is a row without values.
func load(dir string) ([]*result, error) {
	results := make([]*result, len(rows))
	for i, row := range rows {
		results[i] = &result{row: row, values: map[key][]float64{}}
		if err := results[i].read(filepath.Join(dir, row.File+".txt")); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func (r *result) read(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	reader := benchfmt.NewReader(file, path)
	for reader.Scan() {
		switch record := reader.Result().(type) {
		case *benchfmt.Result:
			r.add(record)
		case *benchfmt.SyntaxError:
			return record
		}
	}
	return reader.Err()
}

func (r *result) add(record *benchfmt.Result) {
	if r.Config == nil {
		for _, c := range record.Config {
			r.Config = append(r.Config, [2]string{c.Key, string(c.Value)})
		}
	}
	base, parts := record.Name.Parts()
	if string(base) != r.Name {
		return
	}
	k := key{}
	var params []string
	for _, part := range parts {
		switch name, ok := strings.CutPrefix(string(part), "/"); {
		case ok && strings.Contains(name, "="):
			params = append(params, name)
		case ok:
			k.contestant = name
		}
	}
	k.params = strings.Join(params, "/")
	for _, v := range record.Values {
		value := v.Value
		if k.unit = v.Unit; v.OrigUnit != "" {
			k.unit, value = v.OrigUnit, v.OrigValue
		}
		if r.values[k] == nil {
			r.keys = append(r.keys, k)
		}
		r.values[k] = append(r.values[k], value)
	}
}

// config returns the value of a line "key: value", or nothing.
func (r *result) config(name string) string {
	for _, c := range r.Config {
		if c[0] == name {
			return c[1]
		}
	}
	return ""
}

// Measured says whether there is anything to show.
func (r *result) Measured() bool { return len(r.keys) > 0 }

// comparisons are what differs between the comparisons of the row, in the order of the file.
func (r *result) comparisons() (params []string) {
	for _, k := range r.keys {
		if !slices.Contains(params, k.params) {
			params = append(params, k.params)
		}
	}
	return params
}

// contestants are those of a comparison in the order of their medians of the row's first unit that they have, the floor first.
func (r *result) contestants(params string) (names []string) {
	for _, k := range r.keys {
		if k.params == params && !slices.Contains(names, k.contestant) {
			names = append(names, k.contestant)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return names
}

// estimate is a median with the interval in which that of many more rounds lies, with a probability of 95 %. With fewer than six rounds,
// which say too little for that, it is their range.
type estimate struct{ Median, Low, High float64 }

func summarize(values []float64) estimate {
	sorted := slices.Sorted(slices.Values(values))
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(sorted, &benchmath.DefaultThresholds), 0.95)
	if len(values) < 6 {
		return estimate{s.Center, sorted[0], sorted[len(sorted)-1]}
	}
	return estimate{s.Center, s.Lo, s.Hi}
}

func (r *result) median(k key) (estimate, bool) {
	values := r.values[k]
	if len(values) == 0 {
		return estimate{}, false
	}
	return summarize(values), true
}

// ratio divides the figures of a contestant by those of another one, round by round.
func (r *result) ratio(of, to key) (estimate, bool) {
	a, b := r.values[of], r.values[to]
	n := min(len(a), len(b))
	if n == 0 {
		return estimate{}, false
	}
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = a[i] / b[i]
	}
	return summarize(ratios), true
}

// fit is that of y = c·xᵉ: the exponent, and its standard error.
type fit struct{ Exponent, Error float64 }

// fitPower fits by least squares of the logarithms. An exponent of 0 is what does not grow, of 1 what grows with x.
func fitPower(xs, ys []float64) (f fit, ok bool) {
	n := float64(len(xs))
	if n < 3 {
		return fit{}, false
	}
	var mx, my, sxx, sxy, residual float64
	for i := range xs {
		mx, my = mx+math.Log(xs[i])/n, my+math.Log(ys[i])/n
	}
	for i := range xs {
		dx := math.Log(xs[i]) - mx
		sxx, sxy = sxx+dx*dx, sxy+dx*(math.Log(ys[i])-my)
	}
	f.Exponent = sxy / sxx
	for i := range xs {
		d := math.Log(ys[i]) - my - f.Exponent*(math.Log(xs[i])-mx)
		residual += d * d
	}
	f.Error = math.Sqrt(residual / (n - 2) / sxx)
	return f, true
}

// point is a cost at a number of plugins.
type point struct{ N, Cost float64 }

// points are the costs of a contestant at each number of plugins above zero.
func (r *result) points(g growth, contestant string) (points []point) {
	for _, params := range r.comparisons() {
		n, ok := g.size(params)
		if !ok || n == 0 {
			continue
		}
		m, ok := r.median(key{params, contestant, g.Unit})
		if !ok || m.Median <= 0 {
			continue
		}
		cost := m.Median * cmp.Or(g.Scale, 1)
		if g.Each {
			cost /= n
		}
		points = append(points, point{n, cost})
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.N, b.N) })
	return points
}

// size returns the number of plugins of a comparison, if that is one of the growth.
func (g growth) size(params string) (float64, bool) {
	rest, ok := strings.CutPrefix(params, g.Params)
	if !ok {
		return 0, false
	}
	name, value, _ := strings.Cut(rest, "=")
	n, err := strconv.Atoi(value)
	return float64(n), name == g.Vary && err == nil
}

// quoted returns a file of results as it is, without its head.
func quoted(dir, name string) (head [][2]string, body string, err error) {
	file, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, "", err
	}
	defer file.Close()
	var lines []string
	for s := bufio.NewScanner(file); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ": "); ok && !strings.HasPrefix(k, "Benchmark") {
			head = append(head, [2]string{k, v})
		} else if strings.HasPrefix(k, "Benchmark") {
			lines = append(lines, s.Text())
		}
	}
	if len(lines) == 0 {
		return nil, "", fmt.Errorf("%s has no benchmark", name)
	}
	return head, strings.Join(lines, "\n"), nil
}
