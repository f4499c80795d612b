package cli

import (
	"bytes"
	"io"
	"strings"

	"github.com/mattn/go-runewidth"
)

// gap is between two columns.
const gap = 3

// cellOf is one place in a table.
type cellOf struct {
	text string // escaped
	is   tone
}

// table is text in aligned columns. On a terminal that is too narrow, the cells of the column that can do without their ends are cut.
type table struct {
	terminal
	head []string
	rows [][]cellOf
	// cut is the column that is cut, noCut for none.
	cut int
}

// noCut leaves all columns whole.
const noCut = -1

// plainRow returns the cells of texts without a tone.
func plainRow(texts ...string) []cellOf {
	row := make([]cellOf, len(texts))
	for i, text := range texts {
		row[i] = cellOf{text: text}
	}
	return row
}

func (t *table) add(row ...cellOf) { t.rows = append(t.rows, row) }

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
		head := make([]cellOf, len(t.head))
		for i, title := range t.head {
			head[i] = cellOf{title, strong}
		}
		rows = append([][]cellOf{head}, rows...)
	}
	widths := t.widths(rows)
	lines := make([]string, len(rows))
	for i, row := range rows {
		var line strings.Builder
		for j, c := range row {
			text := truncate(c.text, widths[j])
			line.WriteString(t.paint(text, c.is))
			if j < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[j]-runewidth.StringWidth(text)+gap))
			}
		}
		lines[i] = line.String()
	}
	return lines
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

func (t *table) widths(rows [][]cellOf) []int {
	widths := make([]int, len(rows[0]))
	total := gap * (len(widths) - 1)
	for _, row := range rows {
		for j, c := range row {
			widths[j] = max(widths[j], runewidth.StringWidth(c.text))
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
			widest := &widths[0]
			for j := range widths {
				if widths[j] > *widest {
					widest = &widths[j]
				}
			}
			if *widest <= 1 {
				break
			}
			*widest--
		}
	}
	return widths
}
