package goplugin

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPrivateDirForgetsTheDead(t *testing.T) {
	parent, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(parent)
	dir, err := privateDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alive", "dead", "empty", "link", "starting", "young"} {
		launch := filepath.Join(dir, name)
		if err := os.Mkdir(launch, 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "alive" || name == "dead" {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(launch, "plugin1"), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			defer l.Close()
			if name == "dead" {
				_ = l.Close()
			}
		}
		if name == "link" { // to what is alive
			if err := os.Symlink(filepath.Join(dir, "alive", "plugin1"), filepath.Join(launch, "plugin1")); err != nil {
				t.Fatal(err)
			}
		}
		if name != "young" {
			old := time.Now().Add(-time.Hour)
			if name == "empty" {
				old = old.Add(-minEmpty)
			}
			if err := os.Chtimes(launch, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := privateDir(parent); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range left {
		names = append(names, entry.Name())
	}
	if want := []string{"alive", "starting", "young"}; !slices.Equal(names, want) {
		t.Errorf("%q are left, want %q", names, want)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v, want mode 0700", info, err)
	}
}

func TestPrivateDirWithALongPath(t *testing.T) {
	parent := filepath.Join(t.TempDir(), strings.Repeat("d", 80))
	if _, err := privateDir(parent); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v, want that the path is too long", err)
	}
	if _, err := os.Lstat(parent); err == nil {
		t.Error("a directory was made")
	}
}
