//go:build !linux

package running

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-dev/patchbay/internal/launch/exe"
)

// Digest fails: this system does not say what a process runs.
func (p *Programs) Digest(_ context.Context, pid int, _ uint64) (exe.Digest, error) {
	return exe.Digest{}, fmt.Errorf("%w: process %d: %w", ErrUnreadable, pid, errors.ErrUnsupported)
}
