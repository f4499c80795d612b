package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// plainly is the program patchbay of the scripts. It runs commands that begin no goroutines of their own without the race detector, with
// which a process takes four times the processor time to start. Package fleet of the module integration runs them with it.
const plainly = `#!/bin/sh
case $1 in
__complete | completion | config | devices | doctor | fleet | help | init | launch | list | logs | ls | release | reload | restart | retry | \
	status | stop | support-dump | version) exec %s/plain/patchbay "$@" ;;
esac
exec %s "$@"
`

// preferPlain puts the program patchbay of [plainly] before that of this test binary in PATH, until the end of the test. It returns
// the path of the latter.
func preferPlain(t *testing.T) (raced string) {
	t.Helper()
	raced, err := exec.LookPath("patchbay")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "plain"), 0o755); err != nil {
		t.Fatal(err)
	}
	// "go run" keeps what it has linked in the build cache, as "go build" does not. cp copies what it would run.
	build := exec.CommandContext(t.Context(), "go", "run", "-exec", "cp", "../..", filepath.Join(dir, "plain/patchbay"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "patchbay"), fmt.Appendf(nil, plainly, dir, raced), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return raced
}
