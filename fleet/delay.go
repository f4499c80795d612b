package fleet

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// retry is how long to wait before another request of etcd.
var retry = backoff.Backoff{Min: time.Second, Max: 30 * time.Second}

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
