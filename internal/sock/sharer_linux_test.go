package sock

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// share starts a process that has the descriptors of a listener for a moment, as one has that begins to be started.
func share(l *Listener) error {
	socket, err := l.File()
	if err != nil {
		return err
	}
	sharer := exec.Command("sleep", "0.3")
	sharer.ExtraFiles = []*os.File{l.lock, socket}
	return sharer.Start()
}

// TestDescriptorsOfTheDead: an owner that is killed while it starts a process leaves its socket and its lock to that one for a moment.
func TestDescriptorsOfTheDead(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	owner, said := startChild(t, "share", path)
	if said != "listening" {
		t.Fatal(said)
	}
	_ = owner.Process.Kill()
	_ = owner.Wait()
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// canTellHolder reports whether this system tells which process has a socket.
const canTellHolder = true
