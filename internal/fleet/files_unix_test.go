//go:build unix

package fleet

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet/certfile"
)

// TestPipes checks that a pipe in place of a file is an error. A pipe without a writer would block a reader.
func TestPipes(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	publisher := PublisherConfig{Node: "a", Local: newFakeLocal(), InstanceFile: pipe}
	for name, read := range map[string]func() error{
		"password": func() error { _, err := Etcd{PasswordFile: pipe}.password(); return err },
		"instance": func() error { _, err := NewPublisher(clusterOf(newFake(), time.Second), publisher); return err },
		"CA":       func() error { _, err := certfile.ReadCA(pipe); return err },
		"pair":     func() error { _, err := certfile.Pair(pipe, pipe).Get(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			if err := read(); err == nil || !strings.Contains(err.Error(), "pipe: it is not a regular file") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
