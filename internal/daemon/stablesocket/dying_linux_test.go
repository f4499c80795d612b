package stablesocket

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestStableSocketOfTheDying finds the socket of a daemon that was killed while it began to start a process.
func TestStableSocketOfTheDying(t *testing.T) {
	b := newBed(t, func(d *Sockets) {
		path := filepath.Join(d.Dir, "T", "gone.sock")
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		daemon := exec.Command(os.Args[0])
		daemon.Env = append(os.Environ(), dyingEnv+"="+path, "GORACE=atexit_sleep_ms=0")
		if out, err := daemon.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	b.socket("T", "gone", false)
}
