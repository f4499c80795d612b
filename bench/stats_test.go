package bench

import (
	"math"
	"slices"
)

// quantile returns the value below or at which the share q of the samples lies, by the nearest rank.
func quantile(samples []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(int(math.Ceil(q*float64(len(sorted)))), 1)-1]
}
