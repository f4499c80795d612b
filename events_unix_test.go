//go:build unix

package patchbay_test

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay"
)

// TestEventsPathPipe checks that New refuses a pipe for the events instead of waiting for a writer.
func TestEventsPathPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	returned := make(chan error, 1)
	go func() {
		_, err := patchbay.New(patchbay.Config{PluginDirs: []string{t.TempDir()}, EventsPath: path})
		returned <- err
	}()
	for {
		select {
		case err := <-returned:
			if err == nil || !strings.HasSuffix(err.Error(), "events: it is not a regular file") {
				t.Errorf("the error is %v", err)
			}
			return
		default:
		}
		writer, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, unix.ENXIO) {
			continue // the pipe has no reader
		}
		t.Errorf("New reads the pipe (%v)", errors.Join(err, unix.Close(writer)))
	}
}
