package pkg

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// repository is the root of the repository.
const repository = "../.."

// patience is how long a test waits for what should happen at once.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(exitCode int) {
		for _, dir := range built {
			if err := os.RemoveAll(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		os.Exit(exitCode)
	}))
}

// built are the directories of the packages that were built from the repository, by version.
var built = map[string]string{}

// release returns the directory of the packages of a version for this machine, built from the repository once.
func release(t *testing.T, version string) string {
	t.Helper()
	if built[version] == "" {
		dir, err := os.MkdirTemp("", "patchbay-packages")
		if err != nil {
			t.Fatal(err)
		}
		build(t, absolute(t), dir, version)
		built[version] = dir
	}
	return built[version]
}

// build builds the packages of a version for this machine from a copy of the repository.
func build(t *testing.T, source, out, version string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "packaging")
	runIn(t, filepath.Join(source, "packaging"), "go", "build", "-trimpath", "-o", program, ".")
	runIn(t, filepath.Join(source, "packaging"), program, "-source", source, "-out", out, "-version", version, "-commit", "0123abc",
		"-epoch", "1750000000", "-only", "linux/"+runtime.GOARCH)
}

// deb returns the path of the one Debian package in a directory.
func deb(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d Debian packages in %s, want one: %v", len(found), dir, err)
	}
	return found[0]
}

// run runs a program that has to succeed and returns what it writes to standard output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	return runIn(t, "", name, args...)
}

func runIn(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	output, err := try(t, dir, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func try(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// absolute returns the absolute path of a path relative to the repository.
func absolute(t *testing.T, path ...string) string {
	t.Helper()
	abs, err := filepath.Abs(filepath.Join(append([]string{repository}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
