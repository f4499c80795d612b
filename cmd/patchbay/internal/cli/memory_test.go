package cli

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
)

func TestMemoryIsBoundedByItsGroup(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	dir := t.TempDir()
	system := cgroupfs.System{Unified: &cgroupfs.Place{Mount: dir, Root: "/", Own: "/"}}
	boundMemory(system)
	if now := debug.SetMemoryLimit(-1); now != before {
		t.Errorf("without a bound the limit is %d, and was %d", now, before)
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.max"), []byte("5000000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	boundMemory(system)
	if now := debug.SetMemoryLimit(-1); now != 4_000_000_000 {
		t.Errorf("the limit is %d", now)
	}
}
