package sock

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestStatSaysWhatIsThere(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	stale(t, path)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{path: fs.ModeSocket | 0o640, link: fs.ModeSymlink, dir: fs.ModeDir, os.DevNull: fs.ModeDevice} {
		fi, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		info := mustStat(t, path)
		if info.Mode != fi.Mode() || info.Mode&want != want {
			t.Errorf("%s: mode %v, os.Lstat says %v", path, info.Mode, fi.Mode())
		}
		if info.IsSocket() != (want&fs.ModeSocket != 0) {
			t.Errorf("%s: IsSocket() = %v", path, info.IsSocket())
		}
	}
	if info := mustStat(t, path); info.UID != uint32(os.Getuid()) || info.GID != uint32(os.Getgid()) {
		t.Errorf("owner %d:%d, want %d:%d", info.UID, info.GID, os.Getuid(), os.Getgid())
	}
	if _, err := Stat(filepath.Join(dir, "none")); !IsGone(err) {
		t.Errorf("Stat of nothing: %v", err)
	}
}

func TestIDIsOfTheSocketNotOfThePath(t *testing.T) {
	dir := tempDir(t)
	path, other := filepath.Join(dir, "s"), filepath.Join(dir, "t")
	stale(t, path)
	first := mustStat(t, path)
	if first.ID.IsZero() {
		t.Fatal("the identity is zero")
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, other); err != nil {
		t.Fatal(err)
	}
	if got := mustStat(t, other); got.ID != first.ID {
		t.Errorf("after chmod and rename the identity is %v, was %v", got.ID, first.ID)
	}
	stale(t, path)
	if got := mustStat(t, path); got.ID == first.ID {
		t.Errorf("two sockets have one identity: %v", got.ID)
	}
}

func TestStatAllocates(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	stale(t, path)
	if n := testing.AllocsPerRun(100, func() { _, _ = Stat(path) }); n > 2 {
		t.Errorf("%v allocations, want at most 2", n)
	}
}

func TestIDText(t *testing.T) {
	for id, text := range map[plugin.SocketID]string{
		{}: "0.0.0",
		{Device: 0xfd00, Inode: 18, Birth: 1 << 60}:      "fd00.12.1000000000000000",
		{Device: 1<<64 - 1, Inode: 1<<64 - 1, Birth: -1}: "ffffffffffffffff.ffffffffffffffff.ffffffffffffffff",
	} {
		if got := id.String(); got != text {
			t.Errorf("String() = %q, want %q", got, text)
		}
		if got, err := plugin.ParseSocketID(text); err != nil || got != id {
			t.Errorf("ParseID(%q) = %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "1", "1.2", "1.2.3.4", "x.1.2", "01.2.3", "A.1.2", "-1.2.3", "+1.2.3", "1_0.2.3", "1.2.10000000000000000"} {
		if id, err := plugin.ParseSocketID(bad); err == nil {
			t.Errorf("ParseID(%q) = %v, want an error", bad, id)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("fd00.12.1000000000000000")
	f.Add("0.0.0")
	f.Add("..")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := plugin.ParseSocketID(s); err == nil && id.String() != s {
			t.Errorf("ParseID(%q) = %v, which prints as %q", s, id, id.String())
		}
	})
}
