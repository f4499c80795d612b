package pluginclient_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	limitDescriptors = func(left int) {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			panic(err)
		}
		most := uint64(len(open) - 1 + left)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			panic(err)
		}
	}
}

// TestFewDescriptors: a host that cannot open enough files is told so, whatever it is that it cannot open.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	for left := range 24 {
		out, err := runHost(t, fmt.Sprintf("%d descriptors", left)).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "too many open files") {
			t.Errorf("with %d more: %v, %s", left, err, out)
		}
	}
}

// exists reports whether a process has not ended.
func exists(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(state), ") Z ") && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
