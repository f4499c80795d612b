package verify

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the page that is generated from the rules")

const (
	page       = "../docs/reference/verify.md"
	beginRules = "<!-- What follows is generated: go test ./verify -run Generated -update -->\n"
	endRules   = "<!-- End of what is generated. -->\n"
)

func generatedRules() string {
	var text strings.Builder
	var order []string
	of := map[string][]Rule{}
	for _, r := range Rules() {
		if of[r.family()] == nil {
			order = append(order, r.family())
		}
		of[r.family()] = append(of[r.family()], r)
	}
	var all []Rule
	for _, family := range order {
		all = append(all, of[family]...)
	}
	family := ""
	for _, r := range all {
		if f := r.family(); f != family {
			family = f
			fmt.Fprintf(&text, "\n### %s: %s\n", f, families[f])
		}
		fmt.Fprintf(&text, "\n#### %s\n\n**%s.**", r.ID, r.Title)
		if r.Type != "" {
			fmt.Fprintf(&text, " For plugins of type %s.", r.Type)
		}
		if r.Command {
			text.WriteString(" Needs a command.")
		}
		fmt.Fprintf(&text, "\n\n- Why: %s\n- What to change: %s.\n", r.Why, r.Remedy)
		if r.Source != "" {
			fmt.Fprintf(&text, "- Source: %s.\n", r.Source)
		}
	}
	return text.String()[1:]
}

// families are the headings.
var families = map[string]string{
	"ENV": "the environment", "PRC": "the process", "REG": "registration", "SVC": "optional services", "CSI": "CSI drivers",
	"DEV": "device plugins", "DRA": "DRA drivers",
	"KUB": "device plugins that register on kubelet.sock", "CON": "connections",
}

// TestGenerated compares the page with what the rules say now. With -update it writes the page.
func TestGenerated(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), beginRules)
	_, after, ok2 := strings.Cut(rest, endRules)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the rules", page)
	}
	want := before + beginRules + generatedRules() + endRules + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("%s is not what the rules say; run this test with -update (-want +got):\n%s", page, diff)
	}
}
