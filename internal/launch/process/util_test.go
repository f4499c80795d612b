//go:build linux

package process

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func itoa(n int) string { return strconv.Itoa(n) }

// descriptors counts the open descriptors of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	list := pids("/proc/self/fd")
	if len(list) == 0 {
		t.Fatal("no descriptors can be seen")
	}
	return len(list)
}

// openFiles returns the files of the open descriptors of this process, except the descriptor that it uses itself.
func openFiles(t testing.TB) map[string]string {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		if file, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			files[e.Name()] = file
		}
	}
	return files
}

// notTested skips a test that this machine does not support. .ci/test shows the skipped tests with their reasons.
func notTested(t testing.TB, what string, why any) {
	t.Helper()
	t.Skipf("NOT TESTED: %s: %v", what, why)
}
