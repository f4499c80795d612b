//go:build linux || darwin

package sock

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDialBelow(t *testing.T) {
	dir := t.TempDir()
	root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	link := filepath.Join(dir, "link")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(errors.Join(os.MkdirAll(filepath.Join(root, "sub"), 0o755), os.Mkdir(outside, 0o755), os.Symlink(root, link)))
	listen := func(path string) {
		l, err := net.Listen("unix", path)
		must(err)
		t.Cleanup(func() { _ = l.Close() })
	}
	listen(filepath.Join(root, "a"))
	listen(filepath.Join(root, "sub", "a"))
	listen(filepath.Join(outside, "a"))
	must(errors.Join(os.Symlink(filepath.Join(outside, "a"), filepath.Join(root, "l")), os.Symlink(outside, filepath.Join(root, "dir")),
		os.WriteFile(filepath.Join(root, "file"), nil, 0o600)))
	for path, root := range map[string]string{
		filepath.Join(root, "a"): root, filepath.Join(root, "sub", "a"): root, filepath.Join(link, "sub", "a"): link,
	} {
		conn, info, err := DialBelow(t.Context(), root, path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if at, err := Stat(path); err != nil || at != info {
			t.Errorf("%s: got %+v, want %+v, %v", path, info, at, err)
		}
		must(conn.Close())
	}
	for _, path := range []string{"l", "dir/a", "file", "sub", "absent", "../outside/a", "."} {
		conn, _, err := DialBelow(t.Context(), root, root+"/"+path)
		if err == nil {
			t.Errorf("%s: connected to %v", path, conn.RemoteAddr())
		}
		if path == "absent" && !errors.Is(err, fs.ErrNotExist) || path != "absent" && !strings.HasPrefix(path, ".") && !IsGone(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
