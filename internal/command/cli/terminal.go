package cli

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// terminal says what the reader of an output can show. The zero value is a pipe or file: no colours, lines of any length.
type terminal struct {
	colour bool
	// width and height are the cells of the screen; zero where there is none.
	width, height int
}

// terminalOf returns what is at the end of w. Colours are left out where NO_COLOR is set (no-color.org) or the terminal is a dumb one.
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

// tone is what a text means, which colours show.
type tone int

const (
	plain tone = iota
	good
	busy
	bad
	faint
	strong
)

// sequences are the parameters of the terminal's sequence for each tone (SGR).
var sequences = map[tone]string{good: "32", busy: "33", bad: "31", faint: "2", strong: "1"}

// paint returns a text in the colour of a tone.
func (t terminal) paint(text string, is tone) string {
	if !t.colour || is == plain || text == "" {
		return text
	}
	return "\x1b[" + sequences[is] + "m" + text + "\x1b[0m"
}

func always(is tone) func(string) tone { return func(string) tone { return is } }

// toneOf says what a state, the kind of an event or a result means. What follows its first word does not matter.
func toneOf(text string) tone {
	word := text
	if end := strings.IndexAny(text, " ,"); end >= 0 {
		word = text[:end]
	}
	switch word {
	case "registered", "running", "added", "serving", "ok", "ready", "passed", "responsive", "healthy", "reloaded":
		return good
	case "unreachable", "unhealthy", "failed", "refused", "backoff", "unresponsive", "not-serving", "degraded", "deregistered",
		"reload-failed", "unlinked", "fail":
		return bad
	case "superseded", "ignored", "stopped", "restored", "not-offered", "not-applicable":
		return faint
	}
	return busy
}
