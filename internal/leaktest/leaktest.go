// Package leaktest makes the tests of a package fail if they leak goroutines or file descriptors. It finds goroutines with
// go.uber.org/goleak. It does not find processes that outlive their tests.
package leaktest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests and exits. Call it from TestMain. It checks descriptors if the system has /proc and all tests passed, because a test
// that fails may not close its files.
func Main(m *testing.M, options ...goleak.Option) {
	before := open()
	goleak.VerifyTestMain(m, append(options, goleak.Cleanup(func(code int) {
		if code == 0 {
			if left := leftOver(before); len(left) > 0 {
				fmt.Fprintf(os.Stderr, "leaktest: the tests left %d file descriptors open: %s\n", len(left), strings.Join(left, ", "))
				code = 1
			}
		}
		os.Exit(code)
	}))...)
}

// patience is how long leftOver waits for descriptors that are being closed after the last test.
const patience = 2 * time.Second

// leftOver returns the descriptors that are open and were not open before.
func leftOver(before map[string]string) []string {
	for began := time.Now(); ; <-time.After(10 * time.Millisecond) { //nolint:forbidigo // there is no event for a closed descriptor
		var left []string
		for fd, file := range open() {
			if before[fd] != file && !ofRuntime(file) {
				left = append(left, fd+" "+file)
			}
		}
		if len(left) == 0 || time.Since(began) > patience {
			return left
		}
	}
}

// ofRuntime reports whether the Go runtime opens such a file when needed and keeps it open: its poller, the CPU limit of the control group,
// and the source of random numbers.
func ofRuntime(file string) bool {
	return file == "anon_inode:[eventpoll]" || file == "anon_inode:[eventfd]" || strings.HasPrefix(file, "/sys/fs/cgroup/") ||
		strings.HasPrefix(filepath.Base(file), "cpu.") || file == "/dev/urandom"
}

// open returns the open descriptors and their files.
func open() map[string]string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // another operating system
	}
	files := make(map[string]string, len(entries))
	for _, entry := range entries {
		// The descriptor of the directory itself is closed by now.
		if file, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil {
			files[entry.Name()] = file
		}
	}
	return files
}
