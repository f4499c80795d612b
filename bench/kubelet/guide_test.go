package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/guide"
)

// TestGuide: the programs of the guide, before and after, register the same plugin.
func TestGuide(t *testing.T) {
	before, after := guide.Build(t, "../../docs/how-to/coming-from-kubelet.md", "../..")
	hello := filepath.Join(t.TempDir(), "hello")
	guide.Go(t, "../..", "build", "-o", hello, "./examples/hello")
	for _, program := range []string{before, after} {
		dir, err := os.MkdirTemp("", "pb")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		plugin := exec.CommandContext(ctx, hello, filepath.Join(dir, "hello.sock"))
		if err := plugin.Start(); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(ctx, program, dir).Output()
		if err != nil || string(out) != "registered hello\n" {
			t.Errorf("%s: %v, %q", program, err, out)
		}
		_ = plugin.Process.Kill()
		_ = plugin.Wait() // it was killed
	}
}
