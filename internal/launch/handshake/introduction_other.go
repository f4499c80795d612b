//go:build !linux

package handshake

import "os"

// Introduction is for Linux.
type Introduction struct{}

// NewIntroduction returns none.
func NewIntroduction() (*Introduction, *os.File, error) { return nil, nil, nil }

// Take returns nil.
func (*Introduction) Take() []byte { return nil }
