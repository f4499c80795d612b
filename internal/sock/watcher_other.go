//go:build !linux

package sock

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// Exits tells when the processes behind connections end. This system has no way to do that: Watch always fails.
type Exits struct{}

// NewExits returns an Exits that can watch nothing.
func NewExits() (*Exits, error) { return &Exits{}, nil }

// Watch returns an error that wraps [ErrNotVisible] and [errors.ErrUnsupported].
func (e *Exits) Watch(*net.UnixConn, func()) (stop func(), err error) {
	return nil, fmt.Errorf("%w: %w", ErrNotVisible, errors.ErrUnsupported)
}

// Run returns nil when ctx is done.
func (e *Exits) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
