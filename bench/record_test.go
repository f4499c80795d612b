package bench

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// metrics are figures of one contestant, in pairs of a unit and a value.
type metrics []any

// record prints what one round showed of a contestant, as a line of the Go benchmark format, in which a benchmark has one line for each
// round. The name ends in the contestant, before which "key=value" says what differs between the comparisons of a row; n is how many times
// the work was done in the round.
func record(b testing.TB, name string, n int, m metrics) {
	b.Helper()
	var line strings.Builder
	fmt.Fprintf(&line, "Benchmark%s-%d %d", name, runtime.GOMAXPROCS(0), n)
	for i := 0; i < len(m); i += 2 {
		fmt.Fprintf(&line, " %.6g %s", m[i+1], m[i])
	}
	if _, ok := b.(*testing.B); ok {
		fmt.Fprintln(os.Stdout, line.String())
	} else {
		b.Log(line.String())
	}
}

// recordRounds is how many rounds single samples are put together to.
const recordRounds = 10

// recordSamples prints samples, in microseconds and in the order in which they were taken, as rounds of which each has the median of its
// samples; and then the 99th percentile of all, which so few rounds do not have.
func recordSamples(b testing.TB, name, what string, samples []float64) {
	b.Helper()
	rounds := min(recordRounds, len(samples))
	for i := range rounds {
		round := samples[i*len(samples)/rounds : (i+1)*len(samples)/rounds]
		record(b, name, len(round), metrics{what + "-µs", quantile(round, 0.5)})
	}
	record(b, name, len(samples), metrics{what + "-p99-µs", quantile(samples, 0.99)})
}

// quantile returns the value below or at which the share q of the samples lies, by the nearest rank.
func quantile(samples []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(int(math.Ceil(q*float64(len(sorted)))), 1)-1]
}
