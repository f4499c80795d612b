package rig

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

// Build builds patchbay and the plugin into a directory, with the race detector if the caller has it. The working directory is within the
// module of this package.
func Build(ctx context.Context, dir string) error {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("cannot find the module: %w", err)
	}
	module := filepath.Dir(strings.TrimSpace(string(out)))
	// Patchbay is built in its own module, with its own versions of its dependencies.
	return errors.Join(
		programs.Build(ctx, filepath.Dir(module), dir, programs.Raced, "./cmd/patchbay"),
		programs.Build(ctx, module, dir, programs.Raced, "./internal/rig/plugin"),
	)
}
