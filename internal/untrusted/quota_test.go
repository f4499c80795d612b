package untrusted

import (
	"testing"
	"time"
)

func TestQuota(t *testing.T) {
	var q Quota[int]
	now := time.Now()
	told := func(who, tries int) (n int) {
		for range tries {
			if _, ok := q.Take(who, now); ok {
				n++
			}
		}
		return n
	}
	if n := told(0, 1000); n != ToldEach {
		t.Errorf("of one %d are told, want %d", n, ToldEach)
	}
	n := ToldEach
	for who := 1; who <= 1000; who++ {
		n += told(who, 1)
	}
	if n != toldAll {
		t.Errorf("of all %d are told, want %d", n, toldAll)
	}
	now = now.Add(time.Second)
	const since = 1000 - (toldAll - ToldEach) // the others who were not told of
	if withheld, ok := q.Take(0, now); !ok || withheld != since {
		t.Errorf("the next is told: %v; %d were not, want %d", ok, withheld, since)
	}
	if withheld, ok := q.Take(0, now); !ok || withheld != 0 {
		t.Errorf("the one after it is told: %v; %d were not, want none", ok, withheld)
	}
}
