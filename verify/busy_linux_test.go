package verify

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"
)

// TestWaitedFor runs more threads than there are processors.
func TestWaitedFor(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("NOT TESTED: how long processes wait for a processor: ", err)
	}
	before := runner.WaitedFor(os.Getpid())
	end := time.Now().Add(200 * time.Millisecond)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8 * runtime.NumCPU()))
	ended := make(chan struct{})
	for range 8 * runtime.NumCPU() {
		go func() {
			for time.Now().Before(end) {
				continue
			}
			ended <- struct{}{}
		}()
	}
	for range 8 * runtime.NumCPU() {
		<-ended
	}
	if d := runner.WaitedFor(os.Getpid()) - before; d < 100*time.Millisecond {
		t.Errorf("it waited for %v", d)
	}
	if d := runner.WaitedFor(0); d != 0 {
		t.Errorf("no process waited for %v", d)
	}
}

// TestThreadsThatEnded: when a thread ends, the kernel forgets how long it has waited.
func TestThreadsThatEnded(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("NOT TESTED: how long processes wait for a processor: ", err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8 * runtime.NumCPU()))
	start := time.Now()
	var threads sync.WaitGroup
	release := make(chan struct{})
	for range 8 * runtime.NumCPU() {
		threads.Go(func() {
			runtime.LockOSThread() // never unlocked, so that the thread ends with this goroutine
			for time.Since(start) < 200*time.Millisecond {
				continue
			}
			<-release
		})
	}
	for runner.WaitedFor(os.Getpid()) < time.Duration(runtime.GOMAXPROCS(0))*50*time.Millisecond {
		if time.Since(start) > time.Minute {
			t.Fatalf("the threads have waited for %v only", runner.WaitedFor(os.Getpid()))
		}
		runtime.Gosched()
	}
	s := &subject{}
	before := s.waited()
	waiting := s.waiting()
	close(release)
	threads.Wait()
	for s.waited() >= before {
		if time.Since(start) > time.Minute {
			t.Fatal("the threads did not end")
		}
		runtime.Gosched()
	}
	if d := waiting(); d < 0 {
		t.Errorf("it has waited for %v since", d)
	}
}

// burnsAtEnd is a plugin that keeps all processors busy after SIGTERM.
const burnsAtEnd = "burns at its end"

// TestBusyEnd: no rule about the exit fails for a plugin that was killed because it had no processor.
func TestBusyEnd(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("NOT TESTED: how long processes wait for a processor: ", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), Target{Command: []string{self}, NoHandshake: true, Env: []string{fakeEnv + "=" + burnsAtEnd}},
		Options{Rules: []string{"PRC003", "PRC004", "PRC005"}, ExitTimeout: 500 * time.Millisecond})
	if err != nil || report.Count(Inconclusive) != 3 {
		t.Errorf("%v, %+v", err, report.Results)
	}
}
