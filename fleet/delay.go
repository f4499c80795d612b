package fleet

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	minDelay = time.Second
	maxDelay = 30 * time.Second
)

// backoff returns a random time to wait before another attempt after a number of failures in a row, at least one: half to one and a half of
// a second that doubles with each failure, up to 30 s.
func backoff(failures int) time.Duration {
	d := min(minDelay<<min(failures-1, 10), maxDelay)
	return d/2 + spread(d)
}

// spread returns a random time below d.
func spread(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// around returns a random time that differs from d by at most a tenth.
func around(d time.Duration) time.Duration { return d - d/10 + spread(d/5) }

// sleep returns false if ctx ended before d had passed.
func sleep(ctx context.Context, d time.Duration) bool {
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
