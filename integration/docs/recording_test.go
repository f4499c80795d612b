package docs

import (
	"context"
	"html"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestRecordingIsCurrent compares the picture of the demo with a demo: the same is said in the same order, with other numbers.
func TestRecordingIsCurrent(t *testing.T) {
	picture, err := os.ReadFile("../../docs/images/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	demo := exec.CommandContext(context.Background(), "bash", "-c", "patchbay demo")
	demo.Env = environment
	printed, err := demo.Output()
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, match := range regexp.MustCompile(`(?m)^<text [^>]*>(.*)</text>$`).FindAllStringSubmatch(string(picture), -1) {
		shown = append(shown, words(html.UnescapeString(match[1])))
	}
	said := []string{"$ patchbay demo"}
	for line := range strings.Lines(string(printed)) {
		if strings.TrimSpace(line) != "" {
			said = append(said, words(line))
		}
	}
	// What happens at the same time is told in any order.
	for _, line := range said {
		if !strings.Contains("\n"+strings.Join(shown, "\n")+"\n", "\n"+line+"\n") {
			t.Errorf("the demo says %q, and docs/images/demo.svg does not: run make recording", line)
		}
	}
	if len(said) != len(shown) {
		t.Errorf("the demo says %d lines, docs/images/demo.svg shows %d: run make recording", len(said), len(shown))
	}
}

// words is a line without its numbers and the widths of its columns.
func words(line string) string { return strings.Join(strings.Fields(alike(line)), " ") }
