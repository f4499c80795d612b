package h2proxy

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestPluginThatTakesNoCalls: a plugin that ends each connection as soon as it is there is not called without end.
func TestPluginThatTakesNoCalls(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	c := NewClient(ClientConfig{
		Timeout: time.Minute, Idle: time.Minute, Pause: time.Minute,
		Dial: func(context.Context) (net.Conn, error) {
			dials.Add(1)
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				go func() { _, _ = io.Copy(io.Discard, there) }()
				f := http2.NewFramer(there, nil)
				_ = f.WriteSettings()
				_ = f.WriteGoAway(0, http2.ErrCodeNo, nil)
				_, _ = io.Copy(io.Discard, there)
			}()
			return here, nil
		},
	})
	budget := NewBudget(DefaultLimits, 0, func(uint32, Reason, bool) {})
	for range 10 {
		if _, err := c.NewStream(t.Context(), nil, "/a.B/C", CallOption{Budget: budget}); err == nil {
			continue // it was sent before the end came
		} else if status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	}
	if n := dials.Load(); n > 10*maxAttempts {
		t.Errorf("it was called %d times", n)
	}
	_ = c.Close()
	if n := budget.Bytes(); n != 0 {
		t.Errorf("%d bytes are still given", n)
	}
}

// TestSilence: a peer that lost its power, and closes nothing, is noticed; one that has nothing to say is not.
func TestSilence(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]bool{"answers": true, "does not answer": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const silence, answer = 10 * time.Second, 3 * time.Second
				c := NewClient(ClientConfig{
					Timeout: time.Minute, Idle: time.Hour, Pause: time.Minute, Silence: silence, Answer: answer,
					Dial: func(context.Context) (net.Conn, error) {
						here, there := net.Pipe()
						go beSilent(there, answers)
						return here, nil
					},
				})
				defer c.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				budget := NewBudget(DefaultLimits, 0, func(uint32, Reason, bool) {})
				began := time.Now()
				stream, err := c.NewStream(ctx, nil, "/a.B/C", CallOption{Budget: budget})
				if err != nil {
					t.Fatal(err)
				}
				want, after := codes.Unavailable, silence+answer
				if answers {
					want, after = codes.DeadlineExceeded, time.Minute
				}
				if err := stream.RecvMsg(new(Fragment)); status.Code(err) != want || time.Since(began) != after {
					t.Errorf("after %v the call ended with %v, want %v after %v", time.Since(began), err, want, after)
				}
			})
		})
	}
}

// beSilent takes whatever it is sent, and answers pings or nothing.
func beSilent(conn net.Conn, answers bool) {
	defer conn.Close()
	f := http2.NewFramer(conn, conn)
	_ = f.WriteSettings()
	_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		if ping, ok := frame.(*http2.PingFrame); ok && answers && !ping.IsAck() {
			_ = f.WritePing(true, ping.Data)
		}
	}
}
