// Package console writes to a terminal or a file: tables, colours, times, and text from plugins with its control characters escaped. It
// knows no commands and no daemon.
package console

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-runewidth"
	"golang.org/x/term"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// gap is the number of spaces between two columns.
const gap = 3

// Tones are functions that return the tone of the text in a column.
type Tones map[int]func(text string) Tone

// Table is text in aligned columns. On a narrow terminal, columns are cut or left out.
type Table struct {
	Terminal
	Head []string
	Rows [][]string // escaped
	// Cuts are the columns that are shortened, in this order, if lines are too long: all but the last are cut to minCut, then left out;
	// finally the last one is cut in its middle, because names differ at both ends. Without Cuts, lines may be too long.
	Cuts  []int
	Tones Tones
}

// Add appends a row.
func (t *Table) Add(row ...string) { t.Rows = append(t.Rows, row) }

// Write writes the table, and nothing if it has no rows.
func (t *Table) Write(w io.Writer) error {
	if len(t.Rows) == 0 {
		return nil
	}
	return Write(w, []byte(strings.Join(t.Lines(), "\n")+"\n"))
}

// Lines returns the lines of the table, the head first if it has one.
func (t *Table) Lines() []string {
	rows := t.Rows
	if len(t.Head) > 0 {
		rows = append([][]string{t.Head}, rows...)
	}
	widths := t.widths(rows)
	lines := make([]string, len(rows))
	for i, row := range rows {
		var line strings.Builder
		for j, c := range row {
			if widths[j] == 0 {
				continue
			}
			text := t.fit(j, c, widths[j])
			line.WriteString(t.Paint(text, t.toneIn(j, c, i == 0 && len(t.Head) > 0)))
			if j < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[j]-runewidth.StringWidth(text)+gap))
			}
		}
		lines[i] = line.String()
	}
	return lines
}

func (t *Table) toneIn(column int, text string, inHead bool) Tone {
	switch is := t.Tones[column]; {
	case inHead:
		return Strong
	case is != nil:
		return is(text)
	}
	return Plain
}

// Truncate shortens text to a number of cells.
func Truncate(text string, width int) string {
	if runewidth.StringWidth(text) <= width {
		return text
	}
	return runewidth.Truncate(text, width, "…")
}

// fit shortens a text of a column to width.
func (t *Table) fit(column int, text string, width int) string {
	if last := len(t.Cuts) - 1; last < 1 || column != t.Cuts[last] || runewidth.StringWidth(text) <= width || width < 3 {
		return Truncate(text, width)
	}
	end := (width - 1) / 2
	return Truncate(text, width-end) + runewidth.TruncateLeft(text, runewidth.StringWidth(text)-end, "")
}

// minCut is the width to which a column is cut before the next one is cut.
const minCut = 12

// widths returns the widths of the columns; zero for columns that are left out.
func (t *Table) widths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	over := gap*(len(widths)-1) - t.Width
	for _, row := range rows {
		for j, c := range row {
			widths[j] = max(widths[j], runewidth.StringWidth(c))
		}
	}
	for _, width := range widths {
		over += width
	}
	if t.Width == 0 || len(t.Cuts) == 0 {
		return widths
	}
	last := len(t.Cuts) - 1
	for _, j := range t.Cuts[:max(last, 1)] {
		by := min(over, widths[j]-minCut)
		if by > 0 {
			widths[j] -= by
			over -= by
		}
	}
	for _, j := range t.Cuts[:last] {
		if over > 0 {
			over -= widths[j] + gap
			widths[j] = 0
		}
	}
	for ; over > 0; over-- {
		widest := t.Cuts[last]
		if widths[widest] <= minCut {
			widest = slices.Index(widths, slices.Max(widths))
		}
		if widths[widest] <= 1 {
			break
		}
		widths[widest]--
	}
	return widths
}

// Terminal describes the terminal behind an output. The zero value is a pipe or file: no colours, lines of any length.
type Terminal struct {
	Colour        bool
	Width, Height int // in cells; zero if unknown
}

// TerminalOf returns the terminal behind w. There are no colours if NO_COLOR is set (no-color.org) or TERM is dumb.
func TerminalOf(w io.Writer) Terminal {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return Terminal{}
	}
	t := Terminal{Colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, height, err := term.GetSize(int(f.Fd())); err == nil {
		t.Width, t.Height = width, height
	}
	return t
}

// Tone is a meaning of a text that a colour shows.
type Tone int

// The tones of a text.
const (
	Plain Tone = iota
	Good
	Busy
	Bad
	Faint
	Strong
)

// sequences are the SGR parameters of each tone.
var sequences = map[Tone]string{Good: "32", Busy: "33", Bad: "31", Faint: "2", Strong: "1"}

// Paint returns the text in a colour, if the terminal shows colours.
func (t Terminal) Paint(text string, is Tone) string {
	if !t.Colour || is == Plain || text == "" {
		return text
	}
	return "\x1b[" + sequences[is] + "m" + text + "\x1b[0m"
}

// ToneOf returns the tone of a state, a kind of event or a result. Only the first word counts.
func ToneOf(text string) Tone {
	word := text
	if end := strings.IndexAny(text, " ,"); end >= 0 {
		word = text[:end]
	}
	switch word {
	case "registered", "running", "added", "serving", "ok", "ready", "passed", "responsive", "healthy", "reloaded", "idle":
		return Good
	case "unreachable", "unhealthy", "failed", "refused", "backoff", "unresponsive", "not-serving", "degraded", "deregistered",
		"reload-failed", "unlinked", "fail", "blocked":
		return Bad
	case "superseded", "ignored", "stopped", "restored", "not-offered", "not-applicable":
		return Faint
	}
	return Busy
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// progressAfter is how long an operation takes before its state is shown.
const progressAfter = 500 * time.Millisecond

// ShowProgress writes the result of state to w if w is a terminal and the operation takes long. The caller must call done after the
// operation.
func ShowProgress(ctx context.Context, w io.Writer, state func(context.Context) string) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	var showing sync.WaitGroup
	if IsTerminal(w) {
		showing.Go(func() {
			if backoff.Pause(ctx, progressAfter) {
				if text := state(ctx); ctx.Err() == nil {
					fmt.Fprintln(w, TerminalOf(w).Paint(text, Faint))
				}
			}
		})
	}
	return func() {
		cancel()
		showing.Wait()
	}
}

// Write writes the output of a command.
func Write(w io.Writer, text []byte) error {
	_, err := io.Copy(w, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("cannot write the output: %w", err)
	}
	return nil
}
