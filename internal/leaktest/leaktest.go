// Package leaktest fails the tests of a package that leave goroutines or file descriptors behind. It adds the descriptors to what
// go.uber.org/goleak looks at; processes that outlive their tests are for the tests that start some.
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

// Main runs the tests and ends the process. It is for TestMain.
//
// Descriptors are checked where /proc shows them, and only of tests that passed: one that fails may leave things open.
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

// patience is how long descriptors may stay open that are being closed, by what is no goroutine of the tests.
const patience = 2 * time.Second

// leftOver returns what is open that was not before.
func leftOver(before map[string]string) []string {
	for began := time.Now(); ; <-time.After(10 * time.Millisecond) { //nolint:forbidigo // the kernel does not tell when it has closed the last
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

// ofRuntime reports whether the Go runtime opens such a file for itself when it needs it and keeps it: its poller, how much processor time
// the control group has, and the source of random numbers.
func ofRuntime(file string) bool {
	return file == "anon_inode:[eventpoll]" || file == "anon_inode:[eventfd]" || strings.HasPrefix(file, "/sys/fs/cgroup/") ||
		strings.HasPrefix(filepath.Base(file), "cpu.") || file == "/dev/urandom"
}

// open returns the open descriptors and what each is.
func open() map[string]string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // another operating system
	}
	files := make(map[string]string, len(entries))
	for _, entry := range entries {
		// That of the directory itself is closed by now.
		if file, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil {
			files[entry.Name()] = file
		}
	}
	return files
}
