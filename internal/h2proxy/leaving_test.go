package h2proxy

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// deaf returns a client of a plugin that reads nothing after the preface, and goes away when it is told to.
func deaf(goAway <-chan struct{}, timeout time.Duration) *Client {
	return NewClient(ClientConfig{
		Timeout: timeout, Idle: time.Hour, Pause: time.Minute,
		Dial: func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				f := http2.NewFramer(there, there)
				_, _ = io.ReadFull(there, make([]byte, len(http2.ClientPreface)))
				_, _ = f.ReadFrame() // the settings
				_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
				if _, gone := <-goAway; gone {
					_ = f.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
				}
			}()
			return here, nil
		},
	})
}

// known returns how many connections a client has.
func (c *Client) known() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

// TestLeavingConnectionThatIsNotRead: a plugin that goes away and reads nothing does not keep its connection after the last call on it.
func TestLeavingConnectionThatIsNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 5 * time.Second
		goAway := make(chan struct{})
		c := deaf(goAway, timeout)
		budget := NewBudget(DefaultLimits, 1, func(uint32, Reason, bool) {})
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			ctx = metadata.AppendToOutgoingContext(ctx, "large", strings.Repeat("x", 1000<<10))
			if _, err := c.NewStream(ctx, nil, "/a.B/C", CallOption{Budget: budget, UID: 7}); err != nil {
				t.Fatal(err)
			}
			goAway <- struct{}{}
			synctest.Wait()
			cancel()
		}
		time.Sleep(timeout) // of synctest
		synctest.Wait()
		if n := c.known(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
		if n := budget.Bytes(); n != 0 {
			t.Errorf("%d bytes are still given", n)
		}
		close(goAway)
		_ = c.Close()
	})
}

// TestUnsentMetadataCount: metadata that a plugin does not read count to the caller whose they are, and beyond what he may have are refused.
func TestUnsentMetadataCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 100 << 10
		goAway := make(chan struct{})
		c := deaf(goAway, time.Minute)
		budget := NewBudget(Limits{UserBytes: size + size/2, Bytes: 16 << 20}, 1, func(uint32, Reason, bool) {})
		call := func(uid uint32, size int) error {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "large", strings.Repeat("x", size))
			_, err := c.NewStream(ctx, nil, "/a.B/C", CallOption{Budget: budget, UID: uid})
			synctest.Wait()
			return err
		}
		if err := call(7, size); err != nil {
			t.Fatal(err)
		}
		if n := budget.bytes.Held(7); n < size {
			t.Errorf("the caller has %d bytes, and %d wait", n, size)
		}
		_ = c.Close()
		if n := budget.Bytes(); n != 0 {
			t.Errorf("%d bytes are still given", n)
		}
		close(goAway)
		c = deaf(goAway, time.Minute)
		if err := call(7, 2*size); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a call with more than its caller may have waiting ends with %v", err)
		}
		_ = c.Close()
	})
}

// TestLeavingConnectionsAreFew: a plugin that goes away after each call has begun, and keeps the call, has few connections.
func TestLeavingConnectionsAreFew(t *testing.T) {
	t.Parallel()
	c := plugin(t, func(p *peer) {
		_ = p.WriteSettings()
		next[*http2.MetaHeadersFrame](p)
		_ = p.WriteGoAway(1, http2.ErrCodeNo, nil)
		_, _ = io.Copy(io.Discard, p.Conn)
	})
	budget := NewBudget(DefaultLimits, 1, func(uint32, Reason, bool) {})
	first := make(chan error, 1)
	for i := range 20 {
		s, err := c.NewStream(t.Context(), nil, "/a.B/C", CallOption{Budget: budget, UID: 7})
		if err != nil {
			t.Fatal(err)
		}
		conn := s.(*clientCall).stream.c
		until(t, "the connection leaves", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.conn != conn
		})
		if i == 0 {
			go func() { first <- s.RecvMsg(new(Fragment)) }()
		}
	}
	until(t, "the older ones have ended", func() bool { return c.known() <= maxLeaving })
	if err := <-first; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "takes no more calls") {
		t.Errorf("the oldest call ends with %v", err)
	}
}

// TestLeavingConnectionsOfAllAreFew: so do many plugins together, and those of root do not count.
func TestLeavingConnectionsOfAllAreFew(t *testing.T) {
	t.Parallel()
	const owner, most = 8, 3
	budget := NewBudget(Limits{Leaving: most}, 1, func(uint32, Reason, bool) {})
	leave := func(owner uint32) *Client {
		c := plugin(t, func(p *peer) {
			_ = p.WriteSettings()
			next[*http2.MetaHeadersFrame](p)
			_ = p.WriteGoAway(1, http2.ErrCodeNo, nil)
			_ = p.SetReadDeadline(time.Time{})
			_, _ = io.Copy(io.Discard, p.Conn)
		})
		c.config.Owner = owner
		s, err := c.NewStream(t.Context(), nil, "/a.B/C", CallOption{Budget: budget, UID: 7})
		if err != nil {
			t.Fatal(err)
		}
		conn := s.(*clientCall).stream.c
		until(t, "the connection leaves", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			leaving, known := c.conns[conn]
			return leaving || !known
		})
		return c
	}
	var clients []*Client
	for range 2 * most {
		clients = append(clients, leave(owner))
		if root := leave(0); root.known() != 1 {
			t.Error("a connection to a plugin of root has ended")
		}
	}
	left := 0
	for _, c := range clients {
		left += c.known()
	}
	if left != most {
		t.Errorf("%d connections are left, want %d", left, most)
	}
	for _, c := range clients {
		_ = c.Close()
	}
	if n := budget.leaving.Sum(); n != 0 {
		t.Errorf("%d are still counted", n)
	}
}
