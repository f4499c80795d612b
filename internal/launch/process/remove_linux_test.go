package process

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveFollowsNoLinks: symbolic links are removed, but not their targets.
func TestRemoveFollowsNoLinks(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	precious := filepath.Join(elsewhere, "sub", "s")
	link, sub := filepath.Join(dir, "link"), filepath.Join(dir, "sub")
	for _, path := range []string{filepath.Dir(precious), sub} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(sub, "s")
	for _, path := range []string{precious, own} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	removeAll([]string{filepath.Join(link, "sub", "s"), filepath.Join(link, "sub"), own, sub, link}, nil, 0)
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("these are left: %v, %v", left, err)
	}
	if resolved, err := Resolve(filepath.Join(sub, "none", "x")); err != nil || resolved != filepath.Join(sub, "none", "x") {
		t.Errorf("a path that is not there is %s, %v", resolved, err)
	}
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sub/s", "none/x/y", "x"} {
		if resolved, err := Resolve(filepath.Join(link, name)); err != nil || resolved != filepath.Join(elsewhere, name) {
			t.Errorf("%s is %s, %v", name, resolved, err)
		}
	}
}
