package untrusted

import (
	"sync"
	"time"
)

// MaxLogRate is how many messages per second are logged for one key, and maxLogRates how many for all keys.
const MaxLogRate, maxLogRates = 10, 20

// LogRate limits how many messages that others can cause are logged per second. The zero LogRate is ready for use. It is safe for
// concurrent use.
type LogRate[K comparable] struct {
	mu    sync.Mutex
	since time.Time
	// logged counts the logged messages of the current second. It has at most maxLogRates keys.
	logged map[K]int
	sum    int
	// suppressed counts the messages since the last one that was logged.
	suppressed int
}

// Allow reports whether one more message for the key may be logged, and how many were suppressed since the last one of any key.
func (r *LogRate[K]) Allow(key K, now time.Time) (suppressed int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.since) >= time.Second {
		r.since, r.logged, r.sum = now, map[K]int{}, 0
	}
	if r.sum == maxLogRates || r.logged[key] == MaxLogRate {
		r.suppressed++
		return 0, false
	}
	r.logged[key]++
	r.sum++
	suppressed, r.suppressed = r.suppressed, 0
	return suppressed, true
}
