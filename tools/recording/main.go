// Recording makes an animated SVG of what "patchbay demo" prints: each line appears when it was printed, slowed down so that one can read
// along. It reads the output from standard input and writes the picture to standard output. Where animations are off, all lines are shown.
//
//	bin/patchbay demo | go run ./recording > ../docs/images/demo.svg
package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strings"
)

const (
	slowdown   = 100 // a second of the demo takes this many in the picture
	fontSize   = 13
	lineHeight = 18
	charWidth  = 7.83
	margin     = 16
)

// colours are those of who speaks, in the second column.
var colours = map[string]string{"demo": "#9aa5b1", "daemon": "#4fb3ff", "alpha": "#5fd38d", "beta": "#f2b35e"}

var spoken = regexp.MustCompile(`^ *(\d+\.\d+) s +(\w+) `)

func main() {
	if err := draw(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "recording: cannot draw:", err)
		os.Exit(1)
	}
}

// line is one line of the output, and when it appears, in seconds from the start of the picture.
type line struct {
	text, colour string
	at           float64
}

func read(in io.Reader) ([]line, error) {
	lines := []line{{text: "$ patchbay demo", colour: "#ffffff"}}
	at := 0.0
	scanner := bufio.NewScanner(in)
	for scanner.Scan() {
		text, colour := scanner.Text(), "#ffffff"
		if match := spoken.FindStringSubmatch(text); match != nil {
			var seconds float64
			if _, err := fmt.Sscan(match[1], &seconds); err != nil {
				return nil, err
			}
			// Never two at once: each has to be read.
			at, colour = max(at+0.25, 1+seconds*slowdown), colours[match[2]]
		} else {
			at += 0.5
		}
		lines = append(lines, line{text, colour, at})
	}
	if len(lines) < 10 {
		return nil, fmt.Errorf("%d lines are no demo", len(lines)-1)
	}
	return lines, scanner.Err()
}

func draw(in io.Reader, out io.Writer) error {
	lines, err := read(in)
	if err != nil {
		return err
	}
	widest := 0
	for _, l := range lines {
		widest = max(widest, len(l.text))
	}
	width, height := int(float64(widest)*charWidth)+2*margin, len(lines)*lineHeight+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="patchbay demo">
<title>patchbay demo, slowed down %d times</title>
<style>
text { font: %dpx ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; white-space: pre }
@media (prefers-reduced-motion: no-preference) { text { animation: appear 0.1s backwards } }
@keyframes appear { from { opacity: 0 } }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#12171d"/>
`, width, height, width, height, slowdown, fontSize)
	for i, l := range lines {
		if l.text == "" {
			continue
		}
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" fill=\"%s\" xml:space=\"preserve\" style=\"animation-delay: %.2fs\">%s</text>\n",
			margin, margin+(i+1)*lineHeight-5, l.colour, l.at, html.EscapeString(l.text))
	}
	b.WriteString("</svg>\n")
	_, err = io.WriteString(out, b.String())
	return err
}
