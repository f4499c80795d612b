package main

import (
	"archive/zip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/module"
)

// The version of a clean tree names its commit. A changed tree has another version for each content, which names the commit too.
func TestVersionNamesTheCommit(t *testing.T) {
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	root, out := t.TempDir(), t.TempDir()
	writeFile := func(content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "m.go"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) string {
		t.Helper()
		printed, err := git(root, args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(printed)
	}
	version := func() string {
		t.Helper()
		v, err := write(root, out, "abc-dirty", time.Unix(0, 0).UTC())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(out, "example.com/m/@v", v+".zip")); err != nil || !module.IsPseudoVersion(v) {
			t.Errorf("%s: %v", v, err)
		}
		return v
	}
	writeFile("package m\n")
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("module example.com/m\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run("init", "-q")
	run("add", "-A")
	run("-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "tree")
	commit := run("rev-parse", "HEAD")[:12]
	clean := version()
	writeFile("package m // changed\n")
	changed := version()
	writeFile("package m // changed again\n")
	again := version()
	if want := "v0.0.0-19700101000000-" + commit; clean != want {
		t.Errorf("a clean tree: got %s, want %s", clean, want)
	}
	for _, v := range []string{changed, again} {
		if !strings.HasPrefix(v, "v0.0.0-dirty.") || !strings.HasSuffix(v, "-"+commit) {
			t.Errorf("a changed tree: got %s, want v0.0.0-dirty.DIGEST.0.TIME-%s", v, commit)
		}
	}
	if changed == again {
		t.Errorf("two contents have the version %s", again)
	}
}

// The examples are published without the replacement that a clone needs.
func TestExamplesRequireTheVersion(t *testing.T) {
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	root, out := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		"go.mod":          "module example.com/m\n",
		"examples/go.mod": "module example.com/m/examples\n\nrequire example.com/m v0.0.0\n\nreplace example.com/m => ../\n",
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := git(root, "init", "-q"); err != nil {
		t.Fatal(err)
	}
	if _, err := write(root, out, "v1.2.3", time.Unix(0, 0).UTC()); err != nil {
		t.Fatal(err)
	}
	proxy := filepath.Join(out, "example.com/m/examples/@v")
	goMod, err := os.ReadFile(filepath.Join(proxy, "v1.2.3.mod"))
	if want := "module example.com/m/examples\n\nrequire example.com/m v1.2.3\n"; err != nil || string(goMod) != want {
		t.Errorf("go.mod is %q, %v", goMod, err)
	}
	packed, err := zip.OpenReader(filepath.Join(proxy, "v1.2.3.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	inZip, err := fs.ReadFile(packed, "example.com/m/examples@v1.2.3/go.mod")
	if err != nil || string(inZip) != string(goMod) {
		t.Errorf("go.mod in the archive is %q, %v", inZip, err)
	}
}
