package untrusted

import (
	"sync"
	"time"
)

// ToldEach is how many refusals per second are logged for one user or plugin, and toldAll how many for all.
const ToldEach, toldAll = 10, 20

// Quota bounds how many messages per second are logged that others can cause without end. The zero Quota is ready for use. It is safe for
// concurrent use.
type Quota[K comparable] struct {
	mu    sync.Mutex
	since time.Time
	// told has those only of whom something was told, so that it is bounded too.
	told map[K]int
	sum  int
	// withheld is how many were not told since the last that was.
	withheld int
}

// Take reports whether one more message for the key may be logged, and how many were suppressed since the last one of any key.
func (q *Quota[K]) Take(who K, now time.Time) (withheld int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.since) >= time.Second {
		q.since, q.told, q.sum = now, map[K]int{}, 0
	}
	if q.sum == toldAll || q.told[who] == ToldEach {
		q.withheld++
		return 0, false
	}
	q.told[who]++
	q.sum++
	withheld, q.withheld = q.withheld, 0
	return withheld, true
}
