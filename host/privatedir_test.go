//go:build unix

package host

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

func TestPrivateDir(t *testing.T) {
	for _, parent := range []string{t.TempDir(), filepath.Join(t.TempDir(), strings.Repeat("d", 100))} {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", parent)
		made, err := makePrivateDir()
		if err != nil {
			t.Fatal(err)
		}
		dir := made.path
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", info, err)
		}
		removeStale(filepath.Dir(dir))
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("another host has removed it: %v", err)
		}
		if err := made.remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("it is still there: %v", err)
		}
		path := filepath.Join(dir, socketName)
		if isLong := len(parent) > 100; strings.HasPrefix(dir, parent) == isLong || len(path) > maxPath {
			t.Errorf("below %s it is %s", parent, dir)
		}
	}
}

func TestRemoveStale(t *testing.T) {
	parent, err := os.MkdirTemp("", "stale")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	host := func(name string) (path string, l *net.UnixListener) {
		path = filepath.Join(parent, dirPrefix+name, socketName)
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { _ = l.Close() })
		return path, l
	}
	// A host that lives may not listen yet.
	starting, l := host("starting")
	_ = l.Close()
	lock, err := sock.HoldDir(filepath.Dir(starting))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	dead, l := host("dead")
	_ = l.Close()
	file := filepath.Join(parent, dirPrefix+"file", socketName)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(parent, dirPrefix+"empty")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(parent, dirPrefix+"link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	removeStale(parent)
	for path, want := range map[string]bool{starting: true, dead: false, filepath.Dir(dead): false, file: true, empty: false, link: true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestPrivateDirsOfHostsThatStart: hosts that start at the same moment leave each other's directories alone.
func TestPrivateDirsOfHostsThatStart(t *testing.T) {
	t.Setenv("TMPDIR", shortDir(t))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				dir, err := makePrivateDir()
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(dir.path, "file"), nil, 0o600); err != nil {
					t.Errorf("another host has removed it: %v", err)
				}
				if err := dir.remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
