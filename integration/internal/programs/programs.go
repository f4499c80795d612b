// Package programs builds what tests run as processes. It knows nothing of what they do with it.
package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// room is how much must be free where programs are put: what the tests of one package need beside the programs, with some to spare.
const room = 1 << 30

// Build builds programs of a module, whose directory is given, into another directory, with the race detector if raced is set. It fails at
// once if there is too little room, and not in the midst of a test.
func Build(ctx context.Context, module, dir string, raced bool, packages ...string) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("cannot ask how much is free in %s: %w", dir, err)
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < room {
		return fmt.Errorf("there are %d MiB free in %s, and tests may need %d: free some, or set TMPDIR to a directory with more room",
			free>>20, dir, room>>20)
	}
	for _, pkg := range packages {
		if err := Put(ctx, module, dir, raced, pkg); err != nil {
			return err
		}
	}
	return nil
}

// Put builds one program with flags of "go build", which come before its package, and puts it at a path. It uses "go run", which keeps what
// it has linked in the build cache, as "go build" does not: packages that test the same program link it once.
func Put(ctx context.Context, module, to string, raced bool, args ...string) error {
	flags := []string{"run", "-race=" + strconv.FormatBool(raced), "-exec", "cp"} // what would run the program copies it
	cmd := exec.CommandContext(ctx, "go", append(append(flags, args...), to)...)
	cmd.Dir, cmd.Env = module, os.Environ()
	if !raced {
		// As releases are built, so that everything is compiled once for both. The race detector needs cgo.
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build a program in %s: %s: %w\n%s", module, cmd, err, output)
	}
	return nil
}
