//go:build !linux

package sock

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// Watcher tells when the peers of connections go. This system has no way to do that: every watch fails.
type Watcher struct{}

// NewWatcher returns a Watcher that can watch nothing.
func NewWatcher() (*Watcher, error) { return &Watcher{}, nil }

// WatchProcess returns an error that wraps [ErrNotVisible] and [errors.ErrUnsupported].
func (w *Watcher) WatchProcess(*net.UnixConn, func()) (stop func(), err error) {
	return nil, fmt.Errorf("%w: %w", ErrNotVisible, errors.ErrUnsupported)
}

// WatchPID returns an error that wraps [ErrNotVisible] and [errors.ErrUnsupported].
func (w *Watcher) WatchPID(int, uint64, func()) (stop func(), err error) {
	return nil, fmt.Errorf("%w: %w", ErrNotVisible, errors.ErrUnsupported)
}

// WatchConn returns an error that wraps [errors.ErrUnsupported], and leaves the connection as it is.
func (w *Watcher) WatchConn(*net.UnixConn, func()) (stop func(), err error) {
	return nil, fmt.Errorf("watch a connection: %w", errors.ErrUnsupported)
}

// Run returns nil when ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
