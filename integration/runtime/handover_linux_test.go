package runtime_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

var (
	handovers        = flag.Int("handover.upgrades", 20, "how many processes of TestHandover follow the first")
	handoverConnects = flag.Int64("handover.connects", 100_000, "how many connections callers of TestHandover make meanwhile")
)

// TestHandover: while processes hand over to each other, no connect is refused and no call fails, on connections that stay and on new ones.
func TestHandover(t *testing.T) {
	upgrades, connects := int64(*handovers), *handoverConnects
	if underRace {
		connects /= 20 // "make test" makes all of them without the race detector too
	}
	h, handler := newCounting(t)
	p := launchable("serve")
	p.Upgrade = plugin.UpgradeHandover
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
	t.Parallel()
	h, _ := newCounting(t)
	auto := launchable("serve")
	handed := launchable("serve")
	handed.Upgrade = plugin.UpgradeHandover
	recreated := launchable("serve")
	recreated.Upgrade = plugin.UpgradeRecreate
	h.set(auto)
	h.running("a process")
	stop := h.greetAlways(4)
	kinds := []launcher.Plugin{auto, handed, onDemand("serve"), recreated, handed, auto, onDemand("serve"), auto, recreated, onDemand("serve"), handed}
	for i, p := range kinds[1:] {
		h.set(p)
		h.until(fmt.Sprintf("change %d", i), func() bool {
			s := h.unit()
			fronted := strings.HasSuffix(s.Socket, ".0.sock")
			return s.State == plugin.StateRunning && fronted == (p.OnDemand || p.Upgrade == plugin.UpgradeHandover) &&
				len(h.rt.Registry().Instances("T", "launched")) == 1
		})
	}
	stop()
}

// TestStartedToSayWhatItIs: a plugin of which nobody knows what it is, is started once; what it said is remembered over a restart.
func TestStartedToSayWhatItIs(t *testing.T) {
	t.Parallel()
	h, handler := newCounting(t)
	p := onDemand("serve")
	p.Announce, p.Idle = plugin.Info{}, time.Millisecond
	h.set(p)
	h.idle()
	h.set(p)
	if s := h.unit(); s.State != plugin.StateIdle {
		t.Errorf("when it is configured again it is %+v, want it idle: it has said what it is", s)
	}
	h.idle()
	h.end()
	if want := "validate v1beta1; register"; handler.seen() != want {
		t.Errorf("the handler saw %q, want %q", handler.seen(), want)
	}
	h.start()
	h.set(p)
	h.idle()
	if s := h.unit(); s.State != plugin.StateIdle {
		t.Errorf("it is %+v", s)
	}
	h.mustGreet()
}

// TestNotIdleBeforeItIsRegistered: a process that is started once to say what it is does not end as idle before the host answers at the
// plugin's socket: nobody could call the plugin then, nor start it by a call.
func TestNotIdleBeforeItIsRegistered(t *testing.T) {
	t.Parallel()
	h, _ := newCounting(t)
	unlock, err := sock.Lock(filepath.Join(h.dir, "unit.0.sock")) // keeps the host from making the socket
	if err != nil {
		t.Fatal(err)
	}
	p := onDemand("serve")
	p.Announce, p.Idle = plugin.Info{}, time.Millisecond
	h.set(p)
	h.until("a process", func() bool { return h.unit().PID != 0 })
	first := h.unit().PID
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline) && h.unit().State == plugin.StateStarting; {
		<-time.After(time.Millisecond)
	}
	if s := h.unit(); s.State != plugin.StateStarting || s.PID != first {
		t.Errorf("before it is registered it is %+v, want process %d", s, first)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	h.idle()
	h.mustGreet()
}

// TestStartedAgainToSayWhatItIs: a plugin of which nobody knows what it is, and whose first process fails, is started again: no call could.
func TestStartedAgainToSayWhatItIs(t *testing.T) {
	h, _ := newCounting(t)
	p := onDemand("serve")
	p.Announce = plugin.Info{}
	p.Args = []string{"/bin/sh", "-c", `[ -e "$0" ] && exec "$1"; : >"$0"; exit 1`, filepath.Join(t.TempDir(), "tried"), p.Args[0]}
	h.set(p)
	h.until("a registration", func() bool { return h.listed().State == plugin.StateRegistered })
	h.mustGreet()
}

// TestSocketBehindAFrontIsRemoved: a process that nobody can connect to any more is replaced as soon as somebody tries.
func TestSocketBehindAFrontIsRemoved(t *testing.T) {
	h, _ := newCounting(t)
	p := launchable("serve")
	p.Upgrade = plugin.UpgradeHandover
	h.set(p)
	first := h.running("registration").PID
	sockets, err := filepath.Glob(filepath.Join(h.dir, ".launched", "unit.*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("the sockets of processes are %q: %v", sockets, err)
	}
	if err := os.Remove(sockets[0]); err != nil {
		t.Fatal(err)
	}
	h.until("another process", func() bool {
		pid, err := h.greet(t.Context())
		return err == nil && pid != strconv.Itoa(first)
	})
}
