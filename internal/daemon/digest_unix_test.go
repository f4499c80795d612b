//go:build unix

package daemon

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestDigestOfPipe checks that a pipe in place of a program is an error. Without a writer it would block the daemon.
func TestDigestOfPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := syscall.Mkfifo(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkDigest(path, ""); err == nil || !strings.HasSuffix(err.Error(), "it is not a regular file; name a program that this user can read") {
		t.Errorf("the error is %v", err)
	}
}
