package cli

import (
	"bytes"
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
)

// gap is between two columns.
const gap = 3

// tones say what the texts in some columns mean.
type tones map[int]func(text string) tone

// table is text in aligned columns. On a terminal that is too narrow, the cells of the column that can do without their ends are cut.
type table struct {
	terminal
	head []string
	rows [][]string // escaped
	// cut is the column that is cut, noCut for none.
	cut   int
	tones tones
}

// noCut leaves all columns whole.
const noCut = -1

func (t *table) add(row ...string) { t.rows = append(t.rows, row) }

// write writes the table, and nothing if it has no rows.
func (t *table) write(w io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	var text bytes.Buffer
	for _, line := range t.lines() {
		text.WriteString(line + "\n")
	}
	return write(w, text.Bytes())
}

// lines returns the lines of the table, the head first if it has one.
func (t *table) lines() []string {
	rows := t.rows
	if len(t.head) > 0 {
		rows = append([][]string{t.head}, rows...)
	}
	widths := t.widths(rows)
	lines := make([]string, len(rows))
	for i, row := range rows {
		var line strings.Builder
		for j, c := range row {
			text := truncate(c, widths[j])
			line.WriteString(t.paint(text, t.toneIn(j, c, i == 0 && len(t.head) > 0)))
			if j < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[j]-runewidth.StringWidth(text)+gap))
			}
		}
		lines[i] = line.String()
	}
	return lines
}

// toneIn returns the tone of a text in a column.
func (t *table) toneIn(column int, text string, inHead bool) tone {
	switch is := t.tones[column]; {
	case inHead:
		return strong
	case is != nil:
		return is(text)
	}
	return plain
}

// truncate returns a text that is at most so many cells wide.
func truncate(text string, width int) string {
	if runewidth.StringWidth(text) <= width {
		return text
	}
	return runewidth.Truncate(text, width, "…")
}

// minCut is the least width that the column which is cut keeps, before others are cut too.
const minCut = 12

func (t *table) widths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	total := gap * (len(widths) - 1)
	for _, row := range rows {
		for j, c := range row {
			widths[j] = max(widths[j], runewidth.StringWidth(c))
		}
	}
	for _, width := range widths {
		total += width
	}
	if over := total - t.width; t.width > 0 && over > 0 && t.cut != noCut {
		cut := &widths[t.cut]
		before := *cut
		*cut = max(before-over, min(before, minCut))
		for over -= before - *cut; over > 0; over-- {
			widest := slices.Max(widths)
			if widest <= 1 {
				break
			}
			widths[slices.Index(widths, widest)]--
		}
	}
	return widths
}
