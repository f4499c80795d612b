package patchbay_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGuideForCIPD: the program of the guide for those who come from CIPD runs, and refuses what no plugin admits. The guides of which both
// programs can be compiled are tested where what they come from is: in host/goplugin/pluginclient, bench/kubelet and bench/nomad.
func TestGuideForCIPD(t *testing.T) {
	text, err := os.ReadFile("docs/how-to/coming-from-cipd.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```go\n")
	program, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatal("the guide has no program")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, overlay, to := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "program")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(here, "guided", "main.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{source: []byte(program), overlay: replace} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", to, "./guided").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), to, filepath.Join(dir, "no-plugin")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "is not admitted") {
		t.Errorf("%v: %s", err, out)
	}
}
