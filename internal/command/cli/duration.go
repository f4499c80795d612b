package cli

import (
	"fmt"
	"time"
)

const day = 24 * time.Hour

// short writes a duration with one unit, the largest of which there are at least two: 90s, 5m, 7h, 12d. What is below zero, as
// it can be between two clocks, is zero.
func short(d time.Duration) string {
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%dd", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", max(d, 0)/time.Second)
}
