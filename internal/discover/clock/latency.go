package clock

import "time"

// Latency estimates how long something takes when nothing holds it up, from how long it took. A quick one counts at once, a slow one as a
// 64th, so a few that are slow on purpose change little, and a machine on which all are slow raises it within a hundred. The zero value has
// no estimate. It is not safe for concurrent use.
type Latency time.Duration

// Add takes over how long it took once.
func (l *Latency) Add(d time.Duration) {
	if e := time.Duration(*l); e == 0 || d < e {
		*l = Latency(max(d, 1))
	} else {
		*l += Latency((d - e) / 64)
	}
}
