package cli

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

// tones are functions that return the tone of the text in a column.
type tones map[int]func(text string) tone

// table is text in aligned columns. On a narrow terminal, columns are cut or left out.
type table struct {
	terminal
	head []string
	rows [][]string // escaped
	// cuts are the columns that are shortened, in this order, if lines are too long: all but the last are cut to minCut, then left out;
	// finally the last one is cut in its middle, because names differ at both ends. Without cuts, lines may be too long.
	cuts  []int
	tones tones
}

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
			if widths[j] == 0 {
				continue
			}
			text := t.fit(j, c, widths[j])
			line.WriteString(t.paint(text, t.toneIn(j, c, i == 0 && len(t.head) > 0)))
			if j < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[j]-runewidth.StringWidth(text)+gap))
			}
		}
		lines[i] = line.String()
	}
	return lines
}

func (t *table) toneIn(column int, text string, inHead bool) tone {
	switch is := t.tones[column]; {
	case inHead:
		return strong
	case is != nil:
		return is(text)
	}
	return plain
}

// truncate shortens text to a number of cells.
func truncate(text string, width int) string {
	if runewidth.StringWidth(text) <= width {
		return text
	}
	return runewidth.Truncate(text, width, "…")
}

// fit shortens a text of a column to width.
func (t *table) fit(column int, text string, width int) string {
	if last := len(t.cuts) - 1; last < 1 || column != t.cuts[last] || runewidth.StringWidth(text) <= width || width < 3 {
		return truncate(text, width)
	}
	end := (width - 1) / 2
	return truncate(text, width-end) + runewidth.TruncateLeft(text, runewidth.StringWidth(text)-end, "")
}

// minCut is the width to which a column is cut before the next one is cut.
const minCut = 12

// widths returns the widths of the columns; zero for columns that are left out.
func (t *table) widths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	over := gap*(len(widths)-1) - t.width
	for _, row := range rows {
		for j, c := range row {
			widths[j] = max(widths[j], runewidth.StringWidth(c))
		}
	}
	for _, width := range widths {
		over += width
	}
	if t.width == 0 || len(t.cuts) == 0 {
		return widths
	}
	last := len(t.cuts) - 1
	for _, j := range t.cuts[:max(last, 1)] {
		by := min(over, widths[j]-minCut)
		if by > 0 {
			widths[j] -= by
			over -= by
		}
	}
	for _, j := range t.cuts[:last] {
		if over > 0 {
			over -= widths[j] + gap
			widths[j] = 0
		}
	}
	for ; over > 0; over-- {
		widest := t.cuts[last]
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

// terminal describes the terminal behind an output. The zero value is a pipe or file: no colours, lines of any length.
type terminal struct {
	colour        bool
	width, height int // in cells; zero if unknown
}

// terminalOf returns the terminal behind w. There are no colours if NO_COLOR is set (no-color.org) or TERM is dumb.
func terminalOf(w io.Writer) terminal {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return terminal{}
	}
	t := terminal{colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, height, err := term.GetSize(int(f.Fd())); err == nil {
		t.width, t.height = width, height
	}
	return t
}

// tone is a meaning of a text that a colour shows.
type tone int

const (
	plain tone = iota
	good
	busy
	bad
	faint
	strong
)

// sequences are the SGR parameters of each tone.
var sequences = map[tone]string{good: "32", busy: "33", bad: "31", faint: "2", strong: "1"}

func (t terminal) paint(text string, is tone) string {
	if !t.colour || is == plain || text == "" {
		return text
	}
	return "\x1b[" + sequences[is] + "m" + text + "\x1b[0m"
}

// toneOf returns the tone of a state, a kind of event or a result. Only the first word counts.
func toneOf(text string) tone {
	word := text
	if end := strings.IndexAny(text, " ,"); end >= 0 {
		word = text[:end]
	}
	switch word {
	case "registered", "running", "added", "serving", "ok", "ready", "passed", "responsive", "healthy", "reloaded", "idle":
		return good
	case "unreachable", "unhealthy", "failed", "refused", "backoff", "unresponsive", "not-serving", "degraded", "deregistered",
		"reload-failed", "unlinked", "fail", "blocked":
		return bad
	case "superseded", "ignored", "stopped", "restored", "not-offered", "not-applicable":
		return faint
	}
	return busy
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// progressAfter is how long an operation takes before its state is shown.
const progressAfter = 500 * time.Millisecond

// showProgress writes the result of state to w if w is a terminal and the operation takes long. The caller must call done after the
// operation.
func showProgress(ctx context.Context, w io.Writer, state func(context.Context) string) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	var showing sync.WaitGroup
	if isTerminal(w) {
		showing.Go(func() {
			if backoff.Pause(ctx, progressAfter) {
				if text := state(ctx); ctx.Err() == nil {
					fmt.Fprintln(w, terminalOf(w).paint(text, faint))
				}
			}
		})
	}
	return func() {
		cancel()
		showing.Wait()
	}
}
