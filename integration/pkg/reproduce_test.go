package pkg

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// The same source in another directory makes the same bytes. "make check-package" does the same without the build cache.
func TestPackagesAreReproducible(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the packages are built on Linux")
	}
	copied := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.CopyFS(copied, packed{os.DirFS(repository)}); err != nil {
		t.Fatal(err)
	}
	first, second := release(t, "v0.9.1"), t.TempDir()
	build(t, copied, second, "v0.9.1")
	want, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(second, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("two builds differ:\n%s\n%s", want, got)
	}
	runIn(t, first, "sha256sum", "--check", "--strict", "SHA256SUMS")
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Logf("the package is not checked by lintian: %v", err)
		return
	}
	run(t, "lintian", "--fail-on", "error,warning", "--allow-root", deb(t, first))
}
