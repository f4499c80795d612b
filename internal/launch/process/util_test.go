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

// openFiles returns what the descriptors of this process are of, without the one that finds out.
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

// notTested skips a test for which this machine is not the right one. .ci/test shows what was skipped with its reason.
func notTested(t testing.TB, what string, why any) {
	t.Helper()
	t.Skipf("NOT TESTED: %s: %v", what, why)
}
