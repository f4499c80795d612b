package verify

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// TestWaitedFor has more threads run than there are processors.
func TestWaitedFor(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("NOT TESTED: how long processes wait for a processor: ", err)
	}
	before := waitedFor(os.Getpid())
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
	if d := waitedFor(os.Getpid()) - before; d < 100*time.Millisecond {
		t.Errorf("it waited for %v", d)
	}
	if d := waitedFor(0); d != 0 {
		t.Errorf("no process waited for %v", d)
	}
}
