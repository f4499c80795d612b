package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Build builds patchbay and the plugin into a directory, with the race detector if the caller has it. The working directory is within the
// module of this package.
func Build(ctx context.Context, dir string) error {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("cannot find the module: %w", err)
	}
	module := filepath.Dir(string(bytes.TrimSpace(out)))
	// Patchbay is built in its own module, with its own versions of its dependencies.
	return errors.Join(build(ctx, filepath.Dir(module), dir, "./cmd/patchbay"), build(ctx, module, dir, "./internal/rig/plugin"))
}

func build(ctx context.Context, module, dir, program string) error {
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, program)...)
	cmd.Dir = module
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s in %s: %w\n%s", cmd, module, err, output)
	}
	return nil
}
