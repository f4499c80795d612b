//go:build unix

package pluginlog

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// latency is what a plugin measured that writes lines at 100 MB/s: how long a single write took, and how many of them found the pipe full,
// with the longest wait of those. On a busy machine the former contains that the writer was not scheduled, which a plugin cannot be
// spared; the latter is what the reader is to blame for.
type latency struct {
	Rate, P99, Max, MaxFull time.Duration // Rate: the time for one line
	Full                    int
}

const latencyRole = "latency"

func init() { //nolint:gochecknoinits // Roles register themselves.
	roles[latencyRole] = func() {
		// Not standard output itself, which os opens as a file that blocks.
		unix.SetNonblock(1, true)
		result, err := writeAtRate(os.NewFile(1, "pipe"), 5*time.Second, []byte(textLine), 1000)
		if err != nil {
			panic(err)
		}
		json.NewEncoder(os.Stderr).Encode(result)
	}
}

// BenchmarkWriteLatency runs such a plugin, beside a reader that looks at nothing. Neither the lack of a rate limit nor a handler that is
// stuck makes a difference.
func BenchmarkWriteLatency(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	release := make(chan struct{})
	defer close(release)
	for _, bench := range []struct {
		name   string
		config *settings
	}{
		{"floor", nil},
		{"limited", &settings{Handler: discard{new(atomic.Uint64)}}},
		{"unlimited", &settings{Handler: discard{new(atomic.Uint64)}, Rate: -1}},
		{"stuck", &settings{Handler: blocking{release: release}, Rate: -1}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r, w := pipe(b)
			growPipe(r)
			done := make(chan struct{})
			go func() {
				defer close(done)
				drain(r, bench.config)
			}()
			cmd := exec.CommandContext(b.Context(), self)
			cmd.Env = append(os.Environ(), roleVariable+"="+latencyRole)
			cmd.Stdout = w
			stderr, err := cmd.StderrPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			w.Close()
			var result latency
			if err := json.NewDecoder(stderr).Decode(&result); err != nil {
				b.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				b.Fatal(err)
			}
			<-done
			ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(len(textLine))/result.Rate.Seconds()/1e6, "MB/s")
			b.ReportMetric(ms(result.P99), "p99-ms")
			b.ReportMetric(ms(result.Max), "max-ms")
			b.ReportMetric(float64(result.Full), "full")
			b.ReportMetric(ms(result.MaxFull), "max-full-ms")
		})
	}
}

// writeAtRate writes data so many times per millisecond.
func writeAtRate(w *os.File, span time.Duration, data []byte, perMillisecond int) (latency, error) {
	conn, err := w.SyscallConn()
	if err != nil {
		return latency{}, err
	}
	var l latency
	took := make([]time.Duration, int(span.Milliseconds())*perMillisecond)
	start := time.Now()
	for i := range took {
		before := time.Now()
		waited := false
		err := conn.Write(func(fd uintptr) bool {
			_, err := unix.Write(int(fd), data)
			again := errors.Is(err, unix.EAGAIN)
			waited = waited || again
			return !again
		})
		if err != nil {
			return latency{}, err
		}
		after := time.Now()
		took[i] = after.Sub(before)
		if waited {
			l.Full++
			l.MaxFull = max(l.MaxFull, took[i])
		}
		due := start.Add(time.Duration((i+1)/perMillisecond) * time.Millisecond)
		if ahead := due.Sub(after); ahead > time.Millisecond {
			time.Sleep(ahead)
		}
	}
	l.Rate = time.Since(start) / time.Duration(len(took))
	slices.Sort(took)
	l.P99, l.Max = took[len(took)*99/100], took[len(took)-1]
	return l, nil
}
