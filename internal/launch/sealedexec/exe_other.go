//go:build !linux

package sealedexec

import (
	"context"
	"errors"
	"fmt"
)

// newImage fails: there are no files in memory that can be sealed.
func newImage(string) (*Image, error) {
	return nil, fmt.Errorf("sealed files in memory: %w", errors.ErrUnsupported)
}

func stampAt(string) (stamp, error) { return stamp{}, errors.ErrUnsupported }

// TrustInterpreter fails: this system has no sealed copies.
func TrustInterpreter(path string) error {
	return fmt.Errorf("the interpreter %s: %w", path, errors.ErrUnsupported)
}

// Check returns nil: the formats of this system's programs are not known.
func Check(string) error { return nil }

// Explain is like [Check].
func Explain(string) error { return nil }

// Digest fails: this system does not report which program a process executes.
func (p *Programs) Digest(_ context.Context, pid int, _ uint64) (Digest, error) {
	return Digest{}, fmt.Errorf("%w: process %d: %w", errUnreadable, pid, errors.ErrUnsupported)
}
