package patchbay_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/patchbay-dev/patchbay/launcher"
)

var (
	handovers        = flag.Int("handover.upgrades", 20, "how many processes of TestHandover follow the first")
	handoverConnects = flag.Int64("handover.connects", 100_000, "how many connections callers of TestHandover make meanwhile")
)

// TestHandover: while processes hand over to each other, no connect is refused and no call fails, on connections that stay and on new ones.
func TestHandover(t *testing.T) {
	upgrades, connects := int64(*handovers), *handoverConnects
	if underRace {
		connects /= 5 // "make test" makes all of them without the race detector too
	}
	h, handler := newCounting(t)
	p := launchable("serve")
	p.Upgrade = launcher.UpgradeHandover
	h.set(p)
	h.running("registration")
	socket := h.listed().SocketPath
	var connected, called, failed atomic.Int64
	fail := func(what string, err error) bool {
		if err != nil && failed.Add(1) < 5 {
			t.Errorf("%s: %v", what, err)
		}
		return err != nil
	}
	due := make(chan int64, connects/upgrades) // each has its number; as many for each upgrade as there are in all
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for n := range due {
				conn, err := net.Dial("unix", socket)
				if fail("connect", err) {
					continue
				}
				_, err = conn.Read(make([]byte, 1)) // of what a server says first: the queue is not to be full of the dead
				fail("read", err)
				_ = conn.Close()
				connected.Add(1)
				if n%4 == 0 {
					_, err := h.greet(t.Context())
					fail("call", err)
					called.Add(1)
				}
			}
		})
	}
	for range upgrades {
		restarted := make(chan error, 1)
		go func() { restarted <- h.rt.Launcher().Restart(context.Background(), "unit") }()
		for n := range connects / upgrades {
			due <- n
		}
		if err := <-restarted; err != nil {
			t.Error(err)
		}
	}
	close(due)
	work.Wait()
	t.Logf("%d connects and %d calls over %d upgrades, %d failed", connected.Load(), called.Load(), upgrades, failed.Load())
	if want := "validate v1beta1; register"; handler.seen() != want {
		t.Errorf("the handler saw %q, want %q", handler.seen(), want)
	}
}

// TestChangesOfKind: a plugin that is handed over, on demand or neither is made another of these while it is called, and no call fails.
func TestChangesOfKind(t *testing.T) {
	h, _ := newCounting(t)
	auto := launchable("serve")
	handed := launchable("serve")
	handed.Upgrade = launcher.UpgradeHandover
	recreated := launchable("serve")
	recreated.Upgrade = launcher.UpgradeRecreate
	h.set(auto)
	h.running("a process")
	stop := h.greetAlways(4)
	kinds := []launcher.Plugin{auto, handed, onDemand("serve"), recreated, handed, auto, onDemand("serve"), auto, recreated, onDemand("serve"), handed}
	for i, p := range kinds[1:] {
		h.set(p)
		h.until(fmt.Sprintf("change %d", i), func() bool {
			s := h.unit()
			fronted := strings.HasSuffix(s.Socket, ".0.sock")
			return s.State == launcher.StateRunning && fronted == (p.OnDemand || p.Upgrade == launcher.UpgradeHandover) &&
				len(h.rt.Registry().Instances("T", "launched")) == 1
		})
	}
	stop()
}
