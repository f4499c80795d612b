package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
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
	ctx := context.Background()
	ours := []string{"./cmd/csiregistrar", "./cmd/dradriver", "./cmd/lateregistrar"}
	if runtime.GOOS == "linux" {
		ours = append(ours, "./cmd/atkubelet")
	}
	return errors.Join(
		programs.Build(ctx, "..", dir, programs.Raced, "./cmd/patchbay"),
		programs.Build(ctx, ".", dir, programs.Raced, ours...),
		programs.Build(ctx, ".", dir, false, "k8s.io/kubernetes/test/images/sample-device-plugin"),
	)
}
