//go:build unix

package config

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPipe checks that a pipe in place of the file is an error: without a writer it would block the daemon.
func TestPipe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "patchbay.yaml")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Sources{Defaults: defaults(), File: file}); err == nil || !strings.Contains(err.Error(), "it is not a regular file") {
		t.Errorf("the error is %v", err)
	}
}
