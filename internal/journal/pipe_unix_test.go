//go:build unix

package journal

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestPipe checks that nothing is read from or written to a pipe that has replaced the file, whether or not it has a reader.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	k := newKeeper(path, slog.New(slog.DiscardHandler))
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	events := []plugin.Event{{Seq: 1, Kind: "told"}}
	if err := k.write(events); err == nil {
		t.Error("a pipe without a reader was written to")
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := k.write(events); err == nil || !strings.HasSuffix(err.Error(), "it is not a regular file") {
		t.Errorf("writing: %v", err)
	}
	if _, err := load(path); err == nil || !strings.HasSuffix(err.Error(), "it is not a regular file") {
		t.Errorf("reading: %v", err)
	}
}
