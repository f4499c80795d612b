//go:build !linux

package handshake

import "os"

// Introduction is only used on Linux.
type Introduction struct{}

// NewIntroduction returns nil.
func NewIntroduction() (*Introduction, *os.File, error) { return nil, nil, nil }

// Take returns nil.
func (*Introduction) Take() []byte { return nil }
