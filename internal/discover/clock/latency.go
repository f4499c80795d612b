package clock

import "time"

// Latency estimates how long a fast operation takes, from measured durations. A shorter duration replaces the estimate; a longer one raises
// it by a 64th of the difference. So a few operations that are slow on purpose change it little, and a machine on which all are slow raises
// it with about a hundred. The zero value has no estimate. It is not safe for concurrent use.
type Latency time.Duration

// Add records one measured duration.
func (l *Latency) Add(d time.Duration) {
	if e := time.Duration(*l); e == 0 || d < e {
		*l = Latency(max(d, 1))
	} else {
		*l += Latency((d - e) / 64)
	}
}
