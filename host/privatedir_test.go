//go:build unix

package host

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPrivateDir(t *testing.T) {
	for _, parent := range []string{t.TempDir(), filepath.Join(t.TempDir(), strings.Repeat("d", 100))} {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", parent)
		dir, err := privateDir()
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", info, err)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
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
	alive, _ := host("alive")
	dead, l := host("dead")
	_ = l.Close()
	young, l := host("young")
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
	now := time.Now()
	for _, dir := range []string{filepath.Dir(alive), filepath.Dir(dead), filepath.Dir(file), empty} {
		if err := os.Chtimes(dir, now.Add(-time.Hour), now.Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	removeStale(parent, now.Add(-time.Minute))
	for path, want := range map[string]bool{alive: true, dead: false, filepath.Dir(dead): false, young: true, file: true, empty: false} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}
