package backoff

import (
	"testing"
	"time"
)

func TestAfter(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 10 * time.Second}
	for failures, seconds := range map[int]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 10, 6: 10, 1 << 20: 10} {
		most := time.Duration(seconds) * time.Second
		for range 1000 {
			if got := b.After(failures); got < most/2 || got > most {
				t.Fatalf("after %d failures: %v, want %v to %v", failures, got, most/2, most)
			}
		}
	}
}
