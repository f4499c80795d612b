package h2proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// plugin is a plugin under attack, or one that attacks.
func plugin(t *testing.T, serve func(p *peer)) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				p := newPeer(t, conn)
				if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err == nil {
					serve(p)
				}
			}()
		}
	}()
	c := NewClient(ClientConfig{
		Dial:    func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", path) },
		Timeout: patience, Idle: 20 * time.Millisecond, Pause: time.Millisecond,
	})
	t.Cleanup(func() {
		_ = c.Close()
		_ = l.Close()
	})
	return c
}

// call makes a call.
func call(t *testing.T, ctx context.Context, c *Client) (grpc.ClientStream, *Budget) { //nolint:revive // t is first
	t.Helper()
	budget := NewBudget(DefaultLimits, 1, func(uint32, Reason, bool) {})
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	s, err := c.NewStream(ctx, nil, "/a.B/C", CallOption{Budget: budget, UID: 7})
	if err != nil {
		t.Fatal(err)
	}
	return s, budget
}

// TestNegativeWindow: a plugin takes back what it has allowed, and the caller has nothing more to say.
func TestNegativeWindow(t *testing.T) {
	t.Parallel()
	c := plugin(t, func(p *peer) {
		_ = p.WriteSettings()
		next[*http2.DataFrame](p)
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		_ = p.WritePing(false, [8]byte{1})
		next[*http2.PingFrame](p) // its answer
		p.headers(1, p.fields(":status", "200", "content-type", "application/grpc"), false)
		if f := next[*http2.DataFrame](p); !f.StreamEnded() || f.Length != 0 {
			t.Error("the end is no end")
		}
		p.headers(1, p.fields(statusKey, "0"), true)
		_, _ = io.Copy(io.Discard, p.Conn)
	})
	s, _ := call(t, t.Context(), c)
	if err := s.SendMsg(&Fragment{data: make([]byte, 1000)}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Header(); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(new(Fragment)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestWindowOverflow: a window that grows beyond what HTTP/2 can say ends the connection.
func TestWindowOverflow(t *testing.T) {
	t.Parallel()
	b := newBed(t, DefaultLimits, hang)
	p := b.caller()
	p.headers(1, p.request(), false)
	_ = p.WriteWindowUpdate(1, 1<<30)
	_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	if got := p.status(1); !strings.Contains(got, "EOF") && !strings.Contains(got, "reset by peer") {
		t.Errorf("it goes on: %s", got)
	}
}

// TestConnectionsAreForgotten: what has ended is not kept.
func TestConnectionsAreForgotten(t *testing.T) {
	t.Parallel()
	c := plugin(t, func(p *peer) {
		_ = p.WriteSettings()
		next[*http2.MetaHeadersFrame](p)
		_ = p.WriteGoAway(1, http2.ErrCodeNo, nil)
		p.headers(1, p.fields(":status", "200", "content-type", "application/grpc", statusKey, "0"), true)
		_, _ = io.Copy(io.Discard, p.Conn)
	})
	for range 20 {
		s, _ := call(t, t.Context(), c)
		if err := errors.Join(s.CloseSend(), s.RecvMsg(new(Fragment))); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
	until(t, "no connection is known", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.conns) == 0
	})
}

// TestCutAnswer: an answer of which a part was thrown away, because the call was ended, is no whole answer.
func TestCutAnswer(t *testing.T) {
	t.Parallel()
	c := plugin(t, func(p *peer) {
		_ = p.WriteSettings()
		next[*http2.MetaHeadersFrame](p)
		p.headers(1, p.fields(":status", "200", "content-type", "application/grpc"), false)
		_ = p.WriteData(1, false, []byte("answer"))
		p.headers(1, p.fields(statusKey, "0"), true)
		_, _ = io.Copy(io.Discard, p.Conn)
	})
	ctx, cancel := context.WithCancel(t.Context())
	s, _ := call(t, ctx, c)
	call := s.(*clientCall)
	until(t, "all has come", func() bool {
		call.stream.c.mu.Lock()
		defer call.stream.c.mu.Unlock()
		return call.stream.recvEnded
	})
	cancel()
	until(t, "the call has ended", func() bool {
		call.stream.c.mu.Lock()
		defer call.stream.c.mu.Unlock()
		return call.stream.gone
	})
	if err := s.RecvMsg(new(Fragment)); status.Code(err) != codes.Canceled {
		t.Errorf("the answer ends with %v", err)
	}
}

// TestPluginTakesLittleMetadata: one call with more than a plugin takes does not cost the others their connection.
func TestPluginTakesLittleMetadata(t *testing.T) {
	t.Parallel()
	c := plugin(t, func(p *peer) {
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 8 << 10})
		p.MaxHeaderListSize = 8 << 10
		for p.t.Context().Err() == nil {
			if _, err := p.ReadFrame(); err != nil {
				return
			}
		}
	})
	good, budget := call(t, t.Context(), c)
	md := metadata.Pairs("large", strings.Repeat("x", 100<<10))
	_, err := c.NewStream(metadata.NewOutgoingContext(t.Context(), md), nil, "/a.B/C", CallOption{Budget: budget, UID: 7})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "8192") {
		t.Errorf("it fails with %v", err)
	}
	if err := good.SendMsg(&Fragment{data: []byte("x")}); err != nil {
		t.Error(err)
	}
}

// TestCutMetadata: an answer with more metadata than are taken fails; it is not forwarded without some.
func TestCutMetadata(t *testing.T) {
	t.Parallel()
	half := strings.Repeat("x", 700<<10)
	c := plugin(t, func(p *peer) {
		_ = p.WriteSettings()
		next[*http2.MetaHeadersFrame](p)
		p.headers(1, p.fields(":status", "200", "content-type", "application/grpc", "a", half, "b", half), false)
		p.headers(1, p.fields(statusKey, "0"), true)
		_, _ = io.Copy(io.Discard, p.Conn)
	})
	s, _ := call(t, t.Context(), c)
	if err := s.RecvMsg(new(Fragment)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("it ends with %v", err)
	}
}
