package main

import (
	"os/exec"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/guide"
)

// TestGuide: the programs of the guide, before and after, say the same.
func TestGuide(t *testing.T) {
	before, after := guide.Build(t, "../../docs/how-to/coming-from-nomad.md", "../..")
	const want = "client of new <nil>\nclient of old <nil>\n"
	for _, program := range []string{before, after} {
		if out, err := exec.CommandContext(t.Context(), program).Output(); err != nil || string(out) != want {
			t.Errorf("%s: %v, %q, want %q", program, err, out, want)
		}
	}
}
