// Package guide builds the programs of the guides for those who come from another system: one before and one after.
package guide

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Build builds both programs of a guide, each in its module: the first in the one of the working directory. The paths are relative to that.
func Build(t *testing.T, page, root string) (before, after string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```go\n")[1:]
	if len(blocks) != 2 {
		t.Fatalf("%s has %d programs, want one before and one after", page, len(blocks))
	}
	return compile(t, blocks[0], "."), compile(t, blocks[1], root)
}

// compile builds a block as a package that is there for the compiler only.
func compile(t *testing.T, block, module string) string {
	t.Helper()
	program, _, _ := strings.Cut(block, "```")
	module, err := filepath.Abs(module)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, overlay, to := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "program")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(module, "guided", "main.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{source: []byte(program), overlay: replace} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Go(t, module, "build", "-overlay", overlay, "-o", to, "./guided")
	return to
}

// Go runs a go command in a directory.
func Go(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
