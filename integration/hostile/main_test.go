//go:build linux

package hostile

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
	"github.com/patchbay-dev/patchbay/sdk"
)

const (
	// roleEnv makes the test binary a plugin: the name of an attack, or roleNeighbour. dirEnv and socketEnv say where.
	roleEnv, dirEnv, socketEnv = "PATCHBAY_TEST_ROLE", "PATCHBAY_TEST_DIR", "PATCHBAY_TEST_SOCKET"
	roleNeighbour              = "neighbour"
	// daemonEnv names the program of another daemon to attack, such as one of before.
	daemonEnv = "PATCHBAY_DAEMON"
	// lifetime is the longest time that a hostile process lives, whatever happens to the test.
	lifetime = 8 * time.Minute
)

// bin is a directory that every user may search, with patchbay and this test binary as plugin.
var bin string

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot build what is to be tested:", errors.Join(err, os.RemoveAll(bin)))
		os.Exit(1)
	}
	// Most attacks wait most of the time: for the deadlines that they run into.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(exitCode int) {
		if err := os.RemoveAll(bin); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(exitCode)
	}))
}

// prepare fills bin. The daemon has the race detector if the tests have it.
func prepare() (err error) {
	if bin, err = os.MkdirTemp("", "pb"); err != nil {
		return err
	}
	// A program with the race detector would sleep for a second before it exits.
	if err := errors.Join(os.Chmod(bin, 0o755), os.Setenv("GORACE", "atexit_sleep_ms=0")); err != nil {
		return err
	}
	if err := put("/proc/self/exe", "plugin"); err != nil {
		return err
	}
	if other := os.Getenv(daemonEnv); other != "" {
		patience = 15 * time.Second // much of what is awaited does not happen
		return put(other, "patchbay")
	}
	if err := programs.Build(context.Background(), "../..", bin, programs.Raced, "./cmd/patchbay"); err != nil {
		return err
	}
	return nil
}

// put puts a copy of a program into bin.
func put(program, name string) error {
	from, err := os.Open(program)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(bin, name), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// play is what the test binary does as a plugin.
func play(role string) int {
	time.AfterFunc(lifetime, func() { os.Exit(3) })
	if role == roleNeighbour {
		err := sdk.Serve(context.Background(), sdk.Plugin{
			Type: "Neighbour", Name: filepath.Base(os.Getenv(dirEnv)), Versions: []string{"1"}, Socket: os.Getenv(socketEnv),
			Register: func(grpc.ServiceRegistrar) {}, // grpc.health.v1, which the SDK adds, is called
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	if role == roleLinks {
		leavesLinks(&attacker{dir: os.Getenv(dirEnv)})
	}
	for _, a := range catalogue() {
		if a.name == role {
			a.play(&attacker{dir: os.Getenv(dirEnv), socket: os.Getenv(socketEnv)})
			select {} // its end is no part of an attack, unless it is said
		}
	}
	fmt.Fprintln(os.Stderr, "no such attack:", role)
	return 2
}
