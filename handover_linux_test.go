package patchbay_test

import (
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
	h, handler := newCounting(t)
	p := launchable("serve")
	p.Upgrade = launcher.UpgradeHandover
	h.set(p)
	h.running("registration")
	socket := h.listed().SocketPath
	var connected, called, failed atomic.Int64
	stop, due := make(chan struct{}), make(chan struct{}, upgrades)
	fail := func(what string, err error) bool {
		if err != nil && failed.Add(1) < 5 {
			t.Errorf("%s: %v", what, err)
		}
		return err != nil
	}
	var work sync.WaitGroup
	ended := func() bool {
		select {
		case <-stop:
			return connected.Load() >= connects
		default:
			return false
		}
	}
	for range 4 {
		work.Go(func() {
			for !ended() {
				conn, err := net.Dial("unix", socket)
				if fail("connect", err) {
					continue
				}
				_, err = conn.Read(make([]byte, 1)) // of what a server says first: the queue is not to be full of the dead
				fail("read", err)
				_ = conn.Close()
				if n := connected.Add(1); n%(connects/upgrades) == 0 && n <= connects {
					due <- struct{}{}
				}
			}
		})
		work.Go(func() {
			for !ended() {
				_, err := h.greet(t.Context())
				fail("call", err)
				called.Add(1)
			}
		})
	}
	for range upgrades {
		<-due
		if err := h.rt.Launcher().Restart(t.Context(), "unit"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
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
	stop := make(chan struct{})
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := h.greet(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
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
	close(stop)
	calls.Wait()
}
