package registration

import (
	"context"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// runWatcher returns a watcher that runs until the end of the test.
func runWatcher(t testing.TB) *sock.Watcher {
	t.Helper()
	w, err := sock.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// held makes both calls and holds the connection; gone is closed when the plugin ends it.
func held(t testing.TB, w *sock.Watcher, c *Client) (gone chan struct{}, stop func()) {
	t.Helper()
	if _, err := c.GetInfo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Notify(t.Context(), 0, true, ""); err != nil {
		t.Fatal(err)
	}
	gone = make(chan struct{})
	stop, err := c.Hold(w, func() { close(gone) })
	if err != nil {
		t.Fatal(err)
	}
	return gone, stop
}

func isOpen(gone chan struct{}) bool {
	select {
	case <-gone:
		return false
	default:
		return true
	}
}

func TestHeldUntilTheServerStops(t *testing.T) {
	path, server := serve(t, &fakePlugin{})
	c := dial(t, path)
	gone, stop := held(t, runWatcher(t), c)
	if err := c.Notify(t.Context(), 0, true, ""); status.Code(err) != codes.Unavailable {
		t.Errorf("a call on a held connection: %v", err)
	}
	if err := c.Close(); err != nil { // changes nothing
		t.Error(err)
	}
	walk(t, dial(t, path))
	if !isOpen(gone) {
		t.Error("told while the plugin serves")
	}
	server.Stop()
	<-gone
	stop()
}

// TestHeldDoesNotDelayGracefulStop would take minutes if the connection were kept after the plugin's GOAWAY.
func TestHeldDoesNotDelayGracefulStop(t *testing.T) {
	path, server := serve(t, &fakePlugin{})
	gone, _ := held(t, runWatcher(t), dial(t, path))
	server.GracefulStop()
	<-gone
}

func TestHeldUntilTheProcessIsKilled(t *testing.T) {
	path, child := startChild(t)
	gone, _ := held(t, runWatcher(t), dial(t, path))
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-gone
}

func TestStopEndsAHold(t *testing.T) {
	ended := make(chan struct{})
	client := pair(t, func(p *peer) {
		for p.request() {
			if p.stream == 1 {
				_ = p.WriteSettings()
			}
			p.headers(false, ":status", "200", "content-type", "application/grpc")
			p.finish(make([]byte, prefixLen))
		}
		close(ended)
	})
	gone, stop := held(t, runWatcher(t), client)
	stop()
	<-ended
	stop()
	if !isOpen(gone) {
		t.Error("told of the own stop")
	}
}

// TestHoldAnswersWhatIsPending has a peer that sends more after an answer, before the connection is held.
func TestHoldAnswersWhatIsPending(t *testing.T) {
	sent, acked, release := make(chan struct{}), make(chan int, 1), make(chan struct{})
	client := pair(t, func(p *peer) {
		if !p.request() {
			return
		}
		p.start()
		p.finish(infoMessage())
		_ = p.WritePing(false, [8]byte{1})
		_ = p.WriteSettings()
		_ = p.WriteWindowUpdate(0, 100)
		_ = p.WriteWindowUpdate(p.stream, 100)
		_ = p.WriteRSTStream(p.stream, http2.ErrCodeNo)
		close(sent)
		acks := 0
		for acks < 3 { // two settings, one ping
			f, err := p.ReadFrame()
			if err != nil {
				break
			}
			switch f := f.(type) {
			case *http2.PingFrame:
				if f.IsAck() && f.Data == [8]byte{1} {
					acks++
				}
			case *http2.SettingsFrame:
				if f.IsAck() {
					acks++
				}
			}
		}
		acked <- acks
		<-release
	})
	if _, err := client.GetInfo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	<-sent
	gone := make(chan struct{})
	if _, err := client.Hold(runWatcher(t), func() { close(gone) }); err != nil {
		t.Fatal(err)
	}
	if n := <-acked; n != 3 {
		t.Errorf("%d acknowledgements, want 3", n)
	}
	if !isOpen(gone) {
		t.Error("told of what came before")
	}
	close(release)
	<-gone
}

// TestHoldRefuses has connections that cannot be kept.
func TestHoldRefuses(t *testing.T) {
	w := runWatcher(t)
	fail := func() { t.Error("told of a connection that is not held") }

	path, _ := serve(t, &fakePlugin{})
	if _, err := dial(t, path).Hold(w, fail); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without a call: %v", err)
	}
	for name, say := range map[string]func(*peer){
		"GOAWAY":       func(p *peer) { _ = p.WriteGoAway(p.stream, http2.ErrCodeNo, nil) },
		"end":          func(p *peer) { _ = p.CloseWrite() },
		"half a frame": func(p *peer) { p.raw("\x00\x00\x08\x06\x00") },
		"garbage":      func(p *peer) { p.raw("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") },
		"an answer":    func(p *peer) { p.headers(true, ":status", "200") },
		"too much":     func(p *peer) { p.endlessly(frame(http2.FramePing, 0, 0, make([]byte, 8))) },
	} {
		t.Run(name, func(t *testing.T) {
			said := make(chan struct{})
			client := pair(t, func(p *peer) {
				if p.request() {
					p.start()
					p.finish(infoMessage())
					if name == "too much" {
						close(said)
						say(p)
						return
					}
					say(p)
					close(said)
					p.untilClosed()
				}
			})
			if _, err := client.GetInfo(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			<-said
			if name == "too much" {
				gone := make(chan struct{})
				if _, err := client.Hold(w, func() { close(gone) }); err == nil {
					<-gone // sent too late to be refused
				}
				return
			}
			if _, err := client.Hold(w, fail); err == nil {
				t.Error("held")
			}
			if _, err := client.WatchExit(w, func() {}); err != nil {
				t.Errorf("the process cannot be watched either: %v", err)
			}
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCostOfHolding holds 1,000 connections: one descriptor each, no goroutine, little memory.
func TestCostOfHolding(t *testing.T) {
	const n = 1000
	path, _ := startChild(t)
	w := runWatcher(t)
	var mu sync.Mutex
	ended := 0
	gone := func() { mu.Lock(); defer mu.Unlock(); ended++ }
	stops := make([]func(), 0, n)
	goroutines, files, heap := runtime.NumGoroutine(), openFiles(t), heapInUse()
	for range n {
		c, err := dialAt(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.GetInfo(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		stop, err := c.Hold(w, gone)
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, stop)
	}
	perHold := (heapInUse() - heap) / n
	t.Logf("a held connection costs %d bytes of heap", perHold)
	if perHold > 1<<10 {
		t.Errorf("a held connection costs %d bytes of heap", perHold)
	}
	if d := runtime.NumGoroutine() - goroutines; d > 0 {
		t.Errorf("%d goroutines for %d held connections", d, n)
	}
	if d := openFiles(t) - files; d != n {
		t.Errorf("%d descriptors for %d held connections", d, n)
	}
	for _, stop := range stops {
		stop()
	}
	if d := openFiles(t) - files; d != 0 {
		t.Errorf("%d descriptors left", d)
	}
	mu.Lock()
	defer mu.Unlock()
	if ended > 0 {
		t.Errorf("%d connections ended by themselves", ended)
	}
}

func heapInUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
