//go:build linux

package process

import (
	"io"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkStartToExit compares a process that does nothing, with its three pipes, with the same process under os/exec. The two alternate,
// so that both are measured under the same load. Start is also measured alone, because callers wait for it.
func BenchmarkStartToExit(b *testing.B) {
	for name, cgroup := range map[string]string{"cgroup": "", "nocgroup": noCgroup} {
		b.Run(name, func(b *testing.B) {
			g := newGroup(b, &Group{Cgroup: cgroup})
			own(b, g) // starts the watchdog
			var ownStart, ownLife, bareStart, bareLife []time.Duration
			for b.Loop() {
				start, life := own(b, g)
				ownStart, ownLife = append(ownStart, start), append(ownLife, life)
				start, life = bare(b)
				bareStart, bareLife = append(bareStart, start), append(bareLife, life)
			}
			b.ReportMetric(median(ownStart), "µs/Start")
			b.ReportMetric(median(ownLife), "µs/life")
			b.ReportMetric(median(bareStart), "µs/bareStart")
			b.ReportMetric(median(bareLife), "µs/bareLife")
			b.ReportMetric(median(ownStart)/median(bareStart), "startRatio")
			b.ReportMetric(median(ownLife)/median(bareLife), "lifeRatio")
		})
	}
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2]) / float64(time.Microsecond)
}

func own(b *testing.B, g *Group) (toStart, toExit time.Duration) {
	begin := time.Now()
	p, err := g.Start(Spec{Path: "/bin/true"})
	if err != nil {
		b.Fatal(err)
	}
	toStart = time.Since(begin)
	drain(p.Stdout(), p.Stderr())
	<-p.Done()
	return toStart, time.Since(begin)
}

func bare(b *testing.B) (toStart, toExit time.Duration) {
	begin := time.Now()
	cmd := exec.Command("/bin/true")
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	toStart = time.Since(begin)
	drain(out, errs)
	_ = cmd.Wait()
	_ = in.Close()
	return toStart, time.Since(begin)
}

func drain(readers ...io.ReadCloser) {
	for _, r := range readers {
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
	}
}

// BenchmarkRunning measures what a running process costs its host.
func BenchmarkRunning(b *testing.B) {
	g := newGroup(b, &Group{})
	own(b, g)
	const n = 100
	for b.Loop() {
		goroutines, fds, memory := runtime.NumGoroutine(), descriptors(b), heap()
		procs := make([]*Process, n)
		for i := range procs {
			p, err := g.Start(Spec{Path: "/bin/sleep", Args: []string{"sleep", "60"}})
			if err != nil {
				b.Fatal(err)
			}
			procs[i] = p
		}
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/n, "goroutines/process")
		b.ReportMetric(float64(descriptors(b)-fds)/n, "descriptors/process")
		b.ReportMetric(float64(heap()-memory)/n, "heapB/process")
		for _, p := range procs {
			_ = p.Terminate(b.Context(), Grace{Stdin: -1, Term: -1})
			_, _ = p.Stdout().Close(), p.Stderr().Close()
		}
	}
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
