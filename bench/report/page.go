package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"text/template"
)

const (
	pageName    = "reference/performance.md"
	chartFolder = "images/performance"
)

// pageText is the page without its figures. What profiles show, and what the figures do not say, is written there.
//
//go:embed performance.md.tmpl
var pageText string

// page makes the page and its charts, by their names in the folder of the documents.
func page(dir string, results []*result) (map[string][]byte, error) {
	files := map[string][]byte{}
	byFile := map[string]*result{}
	for _, r := range results {
		byFile[r.File] = r
	}
	chart := func(name string, svg []byte, alt string) string {
		if svg == nil {
			return ""
		}
		files[chartFolder+"/"+name+".svg"] = svg
		return fmt.Sprintf("![%s](../%s/%s.svg)\n", alt, chartFolder, name)
	}
	t, err := template.New(pageName).Funcs(template.FuncMap{
		"summary": func() string {
			return chart("goals", goalsChart(results), "Each measured figure divided by what its goal allows") + "\n" + summaryTable(results)
		},
		"row":      func(file string) string { return byFile[file].section() },
		"growth":   func() string { return growthTable(byFile, chart) },
		"machines": func() string { return machines(results) },
		"quoted": func(name string) (string, error) {
			head, body, err := quoted(dir, name)
			return "```text\n" + lines(head) + body + "\n```\n", err
		},
	}).Parse(pageText)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, nil); err != nil {
		return nil, err
	}
	files[pageName] = out.Bytes()
	return files, nil
}

func lines(config [][2]string) string {
	var b strings.Builder
	for _, c := range config {
		fmt.Fprintf(&b, "%s: %s\n", c[0], c[1])
	}
	return b.String()
}

// number formats a figure with three digits.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.Abs(v) >= 1000:
		digits := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
		for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
			digits = digits[:i] + "," + digits[i:]
		}
		return digits
	case math.Abs(v) >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	default:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
}

func (e estimate) String() string {
	if e.Low == e.High {
		return number(e.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", number(e.Median), number(e.Low), number(e.High))
}

// table is one of Markdown.
type table struct{ rows [][]string }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) String() string {
	var b strings.Builder
	for i, row := range t.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	return b.String()
}

// text returns the table for a terminal.
func (t *table) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // to memory
	return b.String()
}

// verdict is what a goal asks of one figure and what was measured.
type verdict struct {
	params, contestant, goal, measured string
	share                              estimate // of what is allowed: at most 1 is met
	met                                bool
}

// verdicts are those of all goals whose figures were measured.
func (r *result) verdicts() (verdicts []verdict) {
	for _, g := range r.Goals {
		for _, params := range g.Params {
			for _, name := range g.Ours {
				if v, ok := r.judge(g, key{params, name, g.Unit}); ok {
					verdicts = append(verdicts, v)
				}
			}
		}
	}
	return verdicts
}

func (r *result) judge(g goal, k key) (verdict, bool) {
	v := verdict{params: k.params, contestant: k.contestant}
	measured, ok := r.median(k)
	if !ok {
		return v, false
	}
	base, name, hasBase := r.best(g, k)
	relation := "≤"
	if g.AtLeast {
		relation = "≥"
	}
	allowed := g.Limit
	switch {
	case len(g.Base) == 0:
		v.goal, v.measured = fmt.Sprintf("%s %s %s", relation, number(g.Limit), g.Unit), measured.String()
	case !hasBase:
		return v, false
	case g.Above:
		floor, _ := r.median(base)
		allowed += floor.Median
		v.goal, v.measured = fmt.Sprintf("%s %s + %s %s", relation, name, number(g.Limit), g.Unit), measured.String()
	default:
		measured, _ = r.ratio(k, base)
		units := strings.Join(slices.Compact([]string{g.Unit, base.unit}), " ÷ ")
		v.goal = fmt.Sprintf("%s %s × %s, %s", relation, number(g.Limit), name, units)
		v.measured = measured.String() + " ×"
	}
	v.share = estimate{measured.Median / allowed, measured.Low / allowed, measured.High / allowed}
	if g.AtLeast {
		v.share = estimate{allowed / measured.Median, allowed / measured.High, allowed / measured.Low}
	}
	if allowed == 0 {
		v.share = estimate{} // not a share of anything
	}
	v.met = measured.Median <= allowed
	if g.AtLeast {
		v.met = measured.Median >= allowed
	}
	return v, true
}

// best returns the best of the contestants that a goal compares with.
func (r *result) best(g goal, k key) (base key, name string, ok bool) {
	var most float64
	for _, contestant := range g.Base {
		candidate := key{cmp.Or(g.BaseParams, k.params), contestant, cmp.Or(g.BaseUnit, g.Unit)}
		m, measured := r.median(candidate)
		if measured && (!ok || g.AtLeast == (m.Median > most)) {
			base, name, most, ok = candidate, contestant, m.Median, true
		}
	}
	if g.BaseParams != "" {
		name = g.BaseParams
	}
	return base, name, ok
}

func met(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

// summaryTable says how many goals of each row are met.
func summaryTable(results []*result) string {
	t := &table{}
	t.add("row", "work", "goals met", "furthest from its goal", "measured", "of what is allowed")
	for _, r := range results {
		if len(r.Goals) == 0 {
			continue
		}
		verdicts := r.verdicts()
		if len(verdicts) == 0 {
			t.add(r.Name, r.Title, "not measured", "", "", "")
			continue
		}
		good := 0
		worst := verdicts[0]
		for _, v := range verdicts {
			if v.met {
				good++
			}
			if v.share.Median > worst.share.Median {
				worst = v
			}
		}
		t.add(fmt.Sprintf("[%s](#%s)", r.Name, anchor(r)), r.Title, fmt.Sprintf("%d of %d", good, len(verdicts)),
			strings.TrimSpace(worst.contestant+" "+readable(worst.params))+": "+worst.goal, worst.measured,
			strconv.FormatFloat(worst.share.Median, 'f', 2, 64))
	}
	return t.String()
}

func anchor(r *result) string {
	title := strings.ToLower(r.Name + " " + r.Title)
	title = strings.NewReplacer(",", "", ":", "", ".", "").Replace(title)
	return strings.ReplaceAll(title, " ", "-")
}

func readable(params string) string { return strings.ReplaceAll(params, "/", ", ") }

// comparison is the table of one comparison: the medians of each contestant's figures, and the ratio of the first.
func (r *result) comparison(params string) *table {
	var units []string
	for _, unit := range r.Units {
		if slices.ContainsFunc(r.keys, func(k key) bool { return k.params == params && k.unit == unit }) {
			units = append(units, unit)
		}
	}
	t := &table{}
	if len(units) == 0 {
		return t
	}
	head := append([]string{cmp.Or(readable(params), "contestant")}, units...)
	if r.Base != "" {
		head = append(head, units[0]+" ÷ "+r.Base)
	}
	t.add(head...)
	for _, name := range r.contestants(params) {
		cells := []string{"`" + name + "`"}
		for _, unit := range units {
			cell := "–"
			if m, ok := r.median(key{params, name, unit}); ok {
				cell = number(m.Median)
			}
			cells = append(cells, cell)
		}
		if r.Base != "" {
			cell := ""
			if ratio, ok := r.ratio(key{params, name, units[0]}, key{params, r.Base, units[0]}); ok && name != r.Base {
				cell = ratio.String()
			}
			cells = append(cells, cell)
		}
		t.add(cells...)
	}
	return t
}

// goals is the table of what was asked for and what was measured.
func (r *result) goals() *table {
	verdicts := r.verdicts()
	t := &table{}
	if len(verdicts) == 0 {
		return t
	}
	t.add("contestant", "goal", "measured", "of what is allowed", "met")
	for _, v := range verdicts {
		share := "–"
		if v.share.Median != 0 {
			share = strconv.FormatFloat(v.share.Median, 'f', 2, 64)
		}
		t.add(strings.TrimSpace("`"+v.contestant+"` "+readable(v.params)), v.goal, v.measured, share, met(v.met))
	}
	return t
}

// section is all that is generated of a row.
func (r *result) section() string {
	if !r.Measured() {
		return fmt.Sprintf("Not measured: `bench/record %s` has not been run.\n", r.File)
	}
	var b strings.Builder
	if t := r.goals(); len(t.rows) > 0 {
		fmt.Fprintf(&b, "%s\n", t)
	}
	fmt.Fprintf(&b, "<details><summary>All figures: medians of the rounds, and the ratio to <code>%s</code></summary>\n\n",
		cmp.Or(r.Base, "nothing"))
	for _, params := range r.comparisons() {
		if t := r.comparison(params); len(t.rows) > 0 {
			fmt.Fprintf(&b, "%s\n", t)
		}
	}
	b.WriteString("</details>\n\n")
	fmt.Fprintf(&b, "Repeat it with `%s`. Measured %s at commit %s.\n", r.config("command"), r.config("date"), r.config("commit"))
	return b.String()
}

// Print returns the same for a terminal.
func (r *result) Print() string {
	var b strings.Builder
	for _, params := range r.comparisons() {
		fmt.Fprintln(&b, r.comparison(params).text())
	}
	fmt.Fprint(&b, r.goals().text())
	return strings.NewReplacer("`", "", "**", "").Replace(b.String())
}

// growthTable is the table of all costs, and their charts.
func growthTable(results map[string]*result, chart func(name string, svg []byte, alt string) string) string {
	sizes := []float64{10, 100, 1000, 5000, 10_000}
	t := &table{}
	head := []string{"cost", "contestant"}
	for _, n := range sizes {
		head = append(head, number(n))
	}
	t.add(append(head, "exponent")...)
	var charts strings.Builder
	for _, g := range growths {
		r := results[g.File]
		var series []series
		for _, name := range g.Contestants {
			points := r.points(g, name)
			if len(points) == 0 {
				continue
			}
			series = append(series, newSeries(name, points))
			cells := []string{g.Title + ", " + g.Axis, "`" + name + "`"}
			for _, n := range sizes {
				cell := "–"
				if i := slices.IndexFunc(points, func(p point) bool { return p.N == n }); i >= 0 {
					cell = number(points[i].Cost)
				}
				cells = append(cells, cell)
			}
			exponent := "–"
			if f, ok := fitPoints(points); ok {
				exponent = f.String()
			}
			t.add(append(cells, exponent)...)
		}
		if len(series) > 0 {
			charts.WriteString(chart("growth-"+g.File+"-"+slug(g.Unit), lineChart(g, series), g.Title))
		}
	}
	return t.String() + "\n" + charts.String()
}

func slug(unit string) string {
	name, _, _ := strings.Cut(unit, "/")
	return strings.NewReplacer("µs", "time", "-ms", "", "-ns", "").Replace(name)
}

func fitPoints(points []point) (fit, bool) {
	var xs, ys []float64
	for _, p := range points {
		xs, ys = append(xs, p.N), append(ys, p.Cost)
	}
	return fitPower(xs, ys)
}

func (f fit) String() string { return fmt.Sprintf("%.2f ± %.2f", f.Exponent, f.Error) }

// machines says where the results come from, once if all come from the same.
func machines(results []*result) string {
	t := &table{}
	t.add("results", "cpu", "cpus", "memory", "kernel", "file system", "go", "load before")
	for _, r := range results {
		if r.Measured() {
			t.add("`"+r.File+"`", r.config("cpu"), r.config("cpus"), r.config("memory"), r.config("kernel"), r.config("filesystem"),
				r.config("go"), r.config("load-before"))
		}
	}
	var versions strings.Builder
	for _, r := range results {
		if r.Measured() {
			for _, c := range r.Config {
				if strings.Contains(c[0], "/") {
					fmt.Fprintf(&versions, "- `%s` %s\n", c[0], c[1])
				}
			}
			break
		}
	}
	return t.String() + "\n" + versions.String()
}
