package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// bin is the directory of the programs that the tests run.
var bin string

func TestMain(m *testing.M) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot build what is to be tested:", errors.Join(err, os.RemoveAll(bin)))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(exitCode int) {
		if err := os.RemoveAll(bin); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(exitCode)
	}))
}

// prepare fills bin.
func prepare() (err error) {
	if bin, err = os.MkdirTemp("", "patchbay-integration"); err != nil {
		return err
	}
	// A program with the race detector would sleep for a second before it exits, each patchbay command included.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		return err
	}
	return build(bin)
}

// build builds patchbay, the plugins of this module and the plugins of others into a directory. Patchbay is built in its own module, with
// its own versions of its dependencies. What belongs to this repository has the race detector if the tests have it: "go test -race ./..."
// compiles the packages of this module with it in any case.
func build(dir string) error {
	dir += string(filepath.Separator)
	ours := []string{"build", "-o", dir}
	if raceEnabled {
		ours = append(ours, "-race")
	}
	return errors.Join(
		goCommand("..", append(ours, "./cmd/patchbay")...),
		goCommand(".", append(ours, "./cmd/...")...),
		goCommand(".", "build", "-o", dir, "k8s.io/kubernetes/test/images/sample-device-plugin"),
	)
}

func goCommand(dir string, args ...string) error {
	cmd := exec.CommandContext(context.Background(), "go", args...)
	cmd.Dir = dir
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s in %s: %w\n%s", cmd, dir, err, output)
	}
	return nil
}
