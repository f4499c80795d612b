package sock

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestPin: a pinned socket is connected to whatever is at its path.
func TestPin(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can name a socket by a descriptor")
	}
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	serve(t, path)
	pinned, err := Pin(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // with a path, and without
		conn, err := pinned.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		_ = os.Remove(path)
	}
	if err := pinned.Close(); err != nil {
		t.Error(err)
	}
	if conn, err := pinned.Dial(t.Context()); err == nil {
		t.Error("connected after Close: ", conn.Close())
	}
	if pinned, err := Pin(dir); err == nil {
		t.Error("a directory is pinned: ", pinned.Close())
	}
}
