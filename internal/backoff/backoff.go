// Package backoff says how long to wait before another attempt at what failed, and waits. It counts nothing: that is its callers' business,
// who know what a success is.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"

	grpcbackoff "google.golang.org/grpc/backoff"
)

// A Backoff doubles the pause with each failure in a row, from Min to Max.
type Backoff struct{ Min, Max time.Duration }

// After returns the pause after a number of failures in a row, at least one, less up to a fifth, so that those who failed together do not
// try again together.
func (b Backoff) After(failures int) time.Duration { return b.At(failures, rand.Float64()) }

// At is After for a chance from 0 to 1.
func (b Backoff) At(failures int, chance float64) time.Duration {
	pause := b.Min
	for range failures - 1 {
		if pause *= 2; pause >= b.Max {
			pause = b.Max
			break
		}
	}
	return pause - time.Duration(chance*float64(pause/5))
}

// GRPC is what a gRPC connection waits between two attempts to connect.
func (b Backoff) GRPC() grpcbackoff.Config {
	return grpcbackoff.Config{BaseDelay: b.Min, Multiplier: 1.6, Jitter: 0.2, MaxDelay: b.Max}
}

// Pause blocks until d has passed, and then says true, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
