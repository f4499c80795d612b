package output

import "time"

// refill is how often a limiter hands out what has come together. In one piece, because lines that belong together then more often
// come through together, or not at all.
const refill = 100 * time.Millisecond

// limiter is a token bucket.
type limiter struct {
	rate   float64 // tokens per second; negative: no limit
	burst  float64
	tokens float64
	last   time.Time
}

func newLimiter(rate, burst int) limiter {
	b := float64(max(burst, rate/10, 1))
	return limiter{rate: float64(rate), burst: b, tokens: b}
}

// advance tells the limiter what time it is.
func (l *limiter) advance(now time.Time) {
	if elapsed := now.Sub(l.last); elapsed >= refill {
		l.tokens = min(l.burst, l.tokens+l.rate*elapsed.Seconds())
		l.last = now
	}
}

// take says whether a line of n bytes may pass. A long line may take more than there is, which the next ones pay for.
func (l *limiter) take(n int) bool {
	if l.rate < 0 {
		return true
	}
	if l.tokens < 1 {
		return false
	}
	l.tokens -= float64(1 + n/1024)
	return true
}
