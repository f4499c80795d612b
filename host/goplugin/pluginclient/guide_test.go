package pluginclient_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestGuide: the programs of the guide, before and after, say the same.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile("../../../docs/how-to/coming-from-go-plugin.md")
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	plugin := filepath.Join(t.TempDir(), "kv")
	goBuild(t, plugin, "github.com/hashicorp/go-plugin/examples/grpc/plugin-go-grpc")
	blocks := strings.Split(string(text), "```go\n")[1:]
	if len(blocks) != 2 {
		t.Fatalf("the guide has %d programs, want one before and one after", len(blocks))
	}
	for i, block := range blocks {
		program, _, _ := strings.Cut(block, "```")
		dir := t.TempDir()
		source, overlay, host := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "host")
		replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(here, "moved", "main.go"): source}})
		if err != nil {
			t.Fatal(err)
		}
		for path, content := range map[string][]byte{source: []byte(program), overlay: replace} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		goBuild(t, host, "-overlay", overlay, "./moved")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, host)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "KV_PLUGIN="+plugin, "TMPDIR=/tmp")
		// The plugin of the example keeps what it is given in a file, and says so behind it.
		if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), `"hello`) {
			t.Errorf("program %d: %v, %q", i+1, err, out)
		}
	}
}
