package h2proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// seeds returns what well-behaved and other peers send after their settings.
func seeds(f *testing.F, response bool) [][]byte {
	var all [][]byte
	for _, frames := range []func(p *peer){
		func(p *peer) { p.headers(1, p.request(), true) },
		func(p *peer) { p.headers(1, p.request(), false); _ = p.WriteData(1, true, []byte("0123456789")) },
		func(p *peer) {
			p.headers(1, p.request("grpc-timeout", "1m"), false)
			_ = p.WriteRSTStream(1, http2.ErrCodeCancel)
		},
		func(p *peer) {
			p.headers(1, p.fields(":status", "200", "content-type", "application/grpc"), false)
			_ = p.WriteDataPadded(1, false, []byte("0123456789"), make([]byte, 9))
			p.headers(1, p.fields("grpc-status", "0"), true)
		},
		func(p *peer) {
			p.headers(1, p.fields(":status", "200", "content-type", "application/grpc", "grpc-status", "5"), true)
		},
		func(p *peer) {
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
			_ = p.WriteWindowUpdate(0, 1)
			_ = p.WriteWindowUpdate(1, 1<<31-1)
			_ = p.WritePing(false, [8]byte{})
			_ = p.WriteGoAway(1, http2.ErrCodeNo, nil)
		},
	} {
		var b bytes.Buffer
		p := newPeer(f, nil)
		p.Framer = http2.NewFramer(&b, nil)
		if response {
			_ = p.WriteSettings()
		}
		frames(p)
		all = append(all, b.Bytes())
	}
	return all
}

// play has the other end of a connection send what is given and then end.
func play(conn net.Conn, sent ...[]byte) {
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	for _, b := range sent {
		if _, err := conn.Write(b); err != nil {
			break
		}
	}
	_ = conn.Close()
}

// FuzzCaller: whatever a caller sends, all of it has an end and nothing is counted then.
func FuzzCaller(f *testing.F) {
	for _, seed := range seeds(f, false) {
		f.Add(seed)
	}
	var hello bytes.Buffer
	hello.WriteString(http2.ClientPreface)
	_ = http2.NewFramer(&hello, nil).WriteSettings()
	_ = http2.NewFramer(&hello, nil).WriteSettingsAck()
	f.Fuzz(func(t *testing.T, sent []byte) {
		budget := NewBudget(Limits{UserBytes: 1 << 20, Bytes: 2 << 20, UserCalls: 4, Calls: 4}, 1, func(uint32, Reason, bool) {})
		s := NewServer(ServerConfig{Budget: budget, Timeout: time.Second, Handle: func(caller grpc.ServerStream) error {
			fragment := new(Fragment)
			for {
				if err := caller.RecvMsg(fragment); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				if err := caller.SendMsg(fragment); err != nil {
					return err
				}
			}
		}})
		here, there := net.Pipe()
		s.accept(here)
		play(there, hello.Bytes(), sent)
		s.Drain()
		if n, calls := budget.Bytes(), budget.calls.Sum(); n != 0 || calls != 0 {
			t.Errorf("%d bytes and %d calls are counted", n, calls)
		}
	})
}

// FuzzPlugin: whatever a plugin answers, a call has an end and nothing is counted then.
func FuzzPlugin(f *testing.F) {
	for _, seed := range seeds(f, true) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		budget := NewBudget(DefaultLimits, 1, func(uint32, Reason, bool) {})
		c := NewClient(ClientConfig{Timeout: time.Second, Idle: time.Minute, Pause: time.Minute, Dial: func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go play(there, sent)
			return here, nil
		}})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		s, err := c.NewStream(ctx, nil, "/a.B/C", CallOption{Budget: budget, UID: 7})
		if err == nil {
			_, _ = s.Header()
			_ = s.SendMsg(&Fragment{data: make([]byte, 100)})
			_ = s.CloseSend()
			for fragment := new(Fragment); err == nil; {
				err = s.RecvMsg(fragment)
			}
			s.Trailer()
			if ctx.Err() != nil {
				t.Error("the call does not end")
			}
		}
		_ = c.Close()
		if n, calls := budget.Bytes(), budget.calls.Sum(); n != 0 || calls != 0 {
			t.Errorf("%d bytes and %d calls are counted", n, calls)
		}
	})
}
