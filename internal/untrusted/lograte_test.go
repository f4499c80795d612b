package untrusted

import (
	"testing"
	"time"
)

func TestLogRate(t *testing.T) {
	var q LogRate[int]
	now := time.Now()
	told := func(who, tries int) (n int) {
		for range tries {
			if _, ok := q.Allow(who, now); ok {
				n++
			}
		}
		return n
	}
	if n := told(0, 1000); n != MaxLogRate {
		t.Errorf("of one %d are told, want %d", n, MaxLogRate)
	}
	n := MaxLogRate
	for who := 1; who <= 1000; who++ {
		n += told(who, 1)
	}
	if n != maxLogRates {
		t.Errorf("of all %d are told, want %d", n, maxLogRates)
	}
	now = now.Add(time.Second)
	const since = 1000 - (maxLogRates - MaxLogRate) // the others who were not told of
	if suppressed, ok := q.Allow(0, now); !ok || suppressed != since {
		t.Errorf("the next is told: %v; %d were not, want %d", ok, suppressed, since)
	}
	if suppressed, ok := q.Allow(0, now); !ok || suppressed != 0 {
		t.Errorf("the one after it is told: %v; %d were not, want none", ok, suppressed)
	}
}
