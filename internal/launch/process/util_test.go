//go:build linux

package process

import (
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

// notTested skips a test for which this machine is not the right one. .ci/test shows what was skipped with its reason.
func notTested(t testing.TB, what string, why any) {
	t.Helper()
	t.Skipf("NOT TESTED: %s: %v", what, why)
}
