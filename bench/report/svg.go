package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// style is that of all charts. They have a background of their own, so that they can be read on any page.
const style = `<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.small { font-size: 12px } .title { font-size: 15px; font-weight: 600 }
.back { fill: #ffffff } .grid { stroke: #d8dee4 } .axis { stroke: #6e7781 } .limit { stroke: #cf222e; stroke-dasharray: 5 4 }
.floor { stroke: #6e7781; fill: #6e7781 } .a { stroke: #0969da; fill: #0969da } .b { stroke: #1a7f37; fill: #1a7f37 }
.peer { stroke: #bc4c00; fill: #bc4c00 } .bad { stroke: #cf222e; fill: #cf222e }
polyline { fill: none !important; stroke-width: 2 } .fit { stroke-width: 1; stroke-dasharray: 3 4 } text.name { stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .back { fill: #0d1117 } .grid { stroke: #30363d } .axis { stroke: #8b949e } .limit { stroke: #ff7b72 }
.floor { stroke: #8b949e; fill: #8b949e } .a { stroke: #58a6ff; fill: #58a6ff } .b { stroke: #56d364; fill: #56d364 }
.peer { stroke: #ffa657; fill: #ffa657 } .bad { stroke: #ff7b72; fill: #ff7b72 }
}
</style>
`

// svg is a chart that is being drawn.
type svg struct{ strings.Builder }

func newSVG(width, height float64, title string) *svg {
	s := &svg{}
	s.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img">`+"\n",
		width, height, width, height)
	s.printf("<title>%s</title>\n%s", html.EscapeString(title), style)
	s.printf(`<rect class="back" width="%.0f" height="%.0f" rx="6"/>`+"\n", width, height)
	return s
}

func (s *svg) printf(format string, args ...any) { fmt.Fprintf(s, format, args...) }

func (s *svg) text(x, y float64, anchor, class, text string) {
	s.printf(`<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, html.EscapeString(text))
}

func (s *svg) line(class string, x1, y1, x2, y2 float64) {
	s.printf(`<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

func (s *svg) bytes() []byte {
	s.WriteString("</svg>\n")
	return []byte(s.String())
}

// axis is a logarithmic one from low to high, drawn from one place to another.
type axis struct{ low, high, from, to float64 }

func (a axis) at(v float64) float64 {
	return a.from + (a.to-a.from)*(math.Log(v)-math.Log(a.low))/(math.Log(a.high)-math.Log(a.low))
}

// decades are the powers of ten within the axis.
func (a axis) decades() (values []float64) {
	for v := math.Pow(10, math.Ceil(math.Log10(a.low)-1e-9)); v <= a.high*(1+1e-9); v *= 10 {
		values = append(values, v)
	}
	return values
}

// series is a line in a chart.
type series struct {
	name, class string
	points      []point
}

func newSeries(name string, points []point) series {
	class := "peer"
	switch {
	case rank(name) == 0:
		class = "floor"
	case name == "runtime":
		class = "b"
	case rank(name) == 1:
		class = "a"
	}
	return series{name, class, points}
}

// lineChart draws a cost that grows, both axes logarithmic.
func lineChart(g growth, all []series) []byte {
	const width, height, left, right, top, bottom = 740, 360, 90, 190, 44, 50
	x := axis{low: math.Inf(1), from: left, to: width - right}
	y := axis{low: math.Inf(1), from: height - bottom, to: top}
	for _, s := range all {
		for _, p := range s.points {
			x.low, x.high, y.low, y.high = min(x.low, p.N), max(x.high, p.N), min(y.low, p.Cost), max(y.high, p.Cost)
		}
	}
	if x.low == x.high {
		x.high *= 10
	}
	y.low, y.high = math.Pow(10, math.Floor(math.Log10(y.low))), math.Pow(10, math.Floor(math.Log10(y.high))+1)
	c := newSVG(width, height, g.Title)
	c.text(left, 26, "start", "title", g.Title)
	for _, v := range y.decades() {
		c.line("grid", x.from, y.at(v), x.to, y.at(v))
		c.text(x.from-8, y.at(v)+4, "end", "small", number(v))
	}
	for _, v := range append(x.decades(), 5000) {
		if v <= x.high {
			c.line("grid", x.at(v), y.from, x.at(v), y.to)
			c.text(x.at(v), y.from+18, "middle", "small", number(v))
		}
	}
	c.line("axis", x.from, y.from, x.to, y.from)
	c.line("axis", x.from, y.from, x.from, y.to)
	c.text((x.from+x.to)/2, height-12, "middle", "small", "N")
	c.text(12, top-8, "start", "small", g.Axis)
	labels := make([]float64, len(all))
	order := make([]int, len(all))
	for i, s := range all {
		var path strings.Builder
		for _, p := range s.points {
			fmt.Fprintf(&path, "%.1f,%.1f ", x.at(p.N), y.at(p.Cost))
			c.printf(`<circle class="%s" cx="%.1f" cy="%.1f" r="3.5"/>`+"\n", s.class, x.at(p.N), y.at(p.Cost))
		}
		c.printf(`<polyline class="%s" points="%s"/>`+"\n", s.class, strings.TrimSpace(path.String()))
		labels[i], order[i] = y.at(s.points[len(s.points)-1].Cost), i
	}
	// Names that would cover each other are moved down.
	slices.SortFunc(order, func(a, b int) int { return int(labels[a]*10) - int(labels[b]*10) })
	last := 0.0
	for _, i := range order {
		s, at := all[i], max(labels[i], last+17)
		last = at
		label := s.name
		if f, ok := fitPoints(s.points); ok {
			label += " ~ N^" + fmt.Sprintf("%.2f", f.Exponent)
		}
		c.printf(`<text class="%s name" x="%.1f" y="%.1f">%s</text>`+"\n", s.class, x.to+10, at+4, html.EscapeString(label))
	}
	return c.bytes()
}

// goalsChart draws each figure as a share of what its goal allows.
func goalsChart(results []*result) []byte {
	type bar struct {
		label string
		verdict
	}
	var bars []bar
	for _, r := range results {
		for _, v := range r.verdicts() {
			if v.share.Median > 0 {
				bars = append(bars, bar{r.Name + "  " + v.contestant + "  " + readable(v.params) + "  " + unitOf(v.goal), v})
			}
		}
	}
	if len(bars) == 0 {
		return nil
	}
	const width, left, right, step, top, bottom = 900, 460, 30, 18, 60, 40
	height := float64(top + bottom + step*len(bars))
	x := axis{low: 0.01, high: 4, from: left, to: width - right}
	c := newSVG(width, height, "Measured, divided by what the goal allows")
	c.text(16, 26, "start", "title", "Measured, divided by what the goal allows: left of the line is met")
	for _, v := range []float64{0.01, 0.03, 0.1, 0.3, 1, 2, 4} {
		class := "grid"
		if v == 1 {
			class = "limit"
		}
		c.line(class, x.at(v), top-8, x.at(v), height-bottom)
		c.text(x.at(v), top-14, "middle", "small", number(v))
		c.text(x.at(v), height-bottom+18, "middle", "small", number(v))
	}
	for i, b := range bars {
		y := float64(top + step*i + step/2)
		class := "a"
		if !b.met {
			class = "bad"
		}
		clamp := func(v float64) float64 { return x.at(min(max(v, x.low), x.high)) }
		c.text(left-12, y+4, "end", "small", b.label)
		c.line(class, clamp(b.share.Low), y, clamp(b.share.High), y)
		c.printf(`<circle class="%s" cx="%.1f" cy="%.1f" r="4"/>`+"\n", class, clamp(b.share.Median), y)
	}
	return c.bytes()
}

// unitOf is the unit in the text of a goal.
func unitOf(goal string) string { return goal[strings.LastIndex(goal, " ")+1:] }
