package h2proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// canceling are the ways in which a caller can end a call before it is answered.
var canceling = map[string]func(p *peer, id uint32) error{
	"RST_STREAM": func(p *peer, id uint32) error {
		return errors.Join(p.open(id, p.request()), p.WriteRSTStream(id, http2.ErrCodeCancel))
	},
	"too large a window": func(p *peer, id uint32) error {
		return errors.Join(p.open(id, p.request()), p.WriteWindowUpdate(id, 1<<31-1), p.WriteWindowUpdate(id, 1<<31-1))
	},
	"a window of nothing": func(p *peer, id uint32) error {
		return errors.Join(p.open(id, p.request()), p.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4)))
	},
	"data after the end": func(p *peer, id uint32) error {
		return errors.Join(p.open(id, p.request()), p.WriteData(id, true, nil), p.WriteData(id, true, nil))
	},
	"headers in between": func(p *peer, id uint32) error {
		return errors.Join(p.open(id, p.request()), p.open(id, p.request()))
	},
	"little time": func(p *peer, id uint32) error { return p.open(id, p.request("grpc-timeout", "100u")) },
	"the end of the connection": func(p *peer, id uint32) error {
		err := p.open(id, p.request())
		if id%64 == 1 {
			err = errors.Join(err, errAgain)
		}
		return err
	},
}

// errAgain makes a flood continue on another connection.
var errAgain = errors.New("again")

func (p *peer) open(id uint32, block []byte) error {
	return p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
}

// TestCanceledCallsAreBounded checks that, however a caller cancels calls, no more of them are begun than the rates allow, and that other
// callers, even of the same user, are answered.
func TestCanceledCallsAreBounded(t *testing.T) {
	for name, cancel := range canceling {
		t.Run(name, func(t *testing.T) {
			const answered = 2000
			most := int64(500)
			if name == "little time" {
				most = 20_000 // of these, many have begun before the first one ends
			}
			var begun atomic.Int64
			limits := DefaultLimits
			limits.Cancels = CancelRates{Conn: 1, User: 1, All: 1}
			b := newBed(t, limits, func(caller grpc.ServerStream) error {
				if method, _ := grpc.MethodFromServerStream(caller); method != "/a.B/C" {
					return nil
				}
				begun.Add(1)
				<-caller.Context().Done()
				return caller.Context().Err()
			})
			other := b.caller()
			var flooding sync.WaitGroup
			defer flooding.Wait()
			stop := make(chan struct{})
			defer close(stop)
			for range 3 {
				flooding.Go(func() { b.flood(stop, cancel) })
			}
			until(t, "the flood has begun", func() bool { return begun.Load() > 0 })
			for i := range answered {
				id := uint32(2*i + 1)
				other.headers(id, other.fields(":method", "POST", ":scheme", "http", ":path", "/a.B/Other", ":authority", "x",
					"content-type", "application/grpc", "te", "trailers"), true)
				if got := other.status(id); got != "200 0 " {
					t.Fatalf("after %d canceled calls, call %d of another caller ended with %s", begun.Load(), i, got)
				}
				if n := begun.Load(); n > most {
					t.Fatalf("%d canceled calls were begun while another caller was answered %d times", n, i+1)
				}
			}
		})
	}
}

// flood cancels calls until stop is closed.
func (b *bed) flood(stop chan struct{}, cancel func(p *peer, id uint32) error) {
	for {
		conn, err := net.Dial("unix", b.path)
		if err != nil {
			return
		}
		ended := make(chan struct{})
		go func() {
			select {
			case <-stop:
			case <-ended:
			}
			_ = conn.Close()
		}()
		read := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			close(read)
		}()
		p := newPeer(b.t, conn)
		_, err = p.Write([]byte(http2.ClientPreface))
		err = errors.Join(err, p.WriteSettings(), p.WriteSettingsAck())
		for id := uint32(1); err == nil; id += 2 {
			err = cancel(p, id)
		}
		if errors.Is(err, errAgain) {
			_ = conn.(*net.UnixConn).CloseWrite() //nolint:forcetypeassert // it is one
			<-read                                // until the server has noticed
		}
		close(ended)
		select {
		case <-stop:
			return
		default:
		}
	}
}

// TestCancelsOfManyUsers checks that users who each stay within their own rate do not cancel more calls together than all may, that who
// cancels few is not slowed down by them, and that the privileged have no share in that.
func TestCancelsOfManyUsers(t *testing.T) {
	const self, users, ofUser, ofAll = 1, 10, 1000, 2000
	reasons := map[Reason]int{}
	limits := Limits{Cancels: CancelRates{Conn: ofUser, User: ofUser, All: ofAll}}
	b := NewBudget(limits, self, func(_ uint32, why Reason, _ bool) { reasons[why]++ })
	begun := time.Now()
	flood := func(uid uint32, on *cancels, most int) (n int, paused bool) {
		for range most {
			if n++; b.cancel(on, uid, 1) > 0 {
				return n, true
			}
		}
		return n, false
	}
	total, calming := 0, map[uint32]*cancels{}
	for uid := range uint32(users) {
		calming[1000+uid] = new(cancels)
	}
	for len(calming) > 0 {
		for uid, on := range calming {
			n, paused := flood(uid, on, 10)
			if total += n; paused {
				delete(calming, uid)
			}
		}
	}
	// As much at once as in a second, and what the time allows, while users were fewer too.
	if most := ofAll * (2 + time.Since(begun).Seconds()); float64(total) > most {
		t.Errorf("%d calls were canceled before all users were slowed down, want at most %.0f", total, most)
	}
	if reasons[Cancels] == 0 {
		t.Errorf("the reasons are %v, want that all cancel too many", reasons)
	}
	if _, paused := flood(2000, new(cancels), 10); paused {
		t.Error("a user who cancels few calls is slowed down")
	}
	if _, paused := flood(1000, new(cancels), 10); paused {
		t.Error("a connection on which few calls are canceled is slowed down by another one of the same user")
	}
	if n, _ := flood(self, new(cancels), 3*ofUser); n < ofUser {
		t.Errorf("the privileged user is slowed down after %d calls, want its own rate", n)
	}
}

// peerOfHTTP returns the other end of the only connection of an HTTP server, and a channel with the pings that were answered. It is for
// tests in a bubble of testing/synctest.
func peerOfHTTP(t *testing.T, handle Handler) (p *peer, answered <-chan [8]byte) {
	t.Helper()
	budget := NewBudget(DefaultLimits, 1, func(uint32, Reason, bool) {})
	here, there := net.Pipe()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Handler:           HTTPHandler{Handle: handle, Budget: budget, UID: func(*http.Request) uint32 { return 7 }},
		Protocols:         protocols,
		ReadHeaderTimeout: patience,
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return nc.(*Brake).Attach(ctx) //nolint:forcetypeassert // it is the one below
		},
	}
	BoundHTTP(s)
	conns := make(oneConn, 1)
	conns <- budget.Brake(here, 7)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(conns) })
	p = newPeer(t, there)
	pings := make(chan [8]byte, 1)
	serving.Go(func() {
		for {
			f, err := p.ReadFrame()
			if err != nil {
				return
			}
			if ping, ok := f.(*http2.PingFrame); ok && ping.IsAck() {
				pings <- ping.Data
			}
		}
	})
	t.Cleanup(func() {
		_ = there.Close()
		_ = s.Close()
		serving.Wait()
	})
	if _, err := io.WriteString(there, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.WriteSettings(), p.WriteSettingsAck()); err != nil {
		t.Fatal(err)
	}
	return p, pings
}

// oneConn is a listener with one connection.
type oneConn chan net.Conn

func (c oneConn) Accept() (net.Conn, error) {
	nc, ok := <-c
	if !ok {
		return nil, net.ErrClosed
	}
	return nc, nil
}

func (c oneConn) Close() error {
	close(c)
	return nil
}

func (c oneConn) Addr() net.Addr { return httpAddr("") }

// TestResetCallsStopReading checks that an HTTP server reads no further calls of a connection while the handlers of calls that it reset have
// not ended, and goes on when they have.
func TestResetCallsStopReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 3 * maxUnfinished
		var begun atomic.Int64
		release := make(chan struct{})
		p, answered := peerOfHTTP(t, func(grpc.ServerStream) error {
			begun.Add(1)
			<-release
			return nil
		})
		for i := range uint32(maxUnfinished) {
			if err := errors.Join(p.open(2*i+1, p.request()), p.WriteRSTStream(2*i+1, http2.ErrCodeCancel)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		go func() {
			for i := uint32(maxUnfinished); i < calls; i++ {
				if p.open(2*i+1, p.request()) != nil || p.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
					return
				}
			}
			_ = p.WritePing(false, [8]byte{1})
		}()
		// The read that had begun before the last cancellation may bring one more call.
		if synctest.Wait(); begun.Load() > maxUnfinished+1 || len(answered) > 0 {
			t.Errorf("%d calls have begun, want %d", begun.Load(), maxUnfinished)
		}
		close(release)
		<-answered
		if synctest.Wait(); begun.Load() != calls {
			t.Errorf("%d calls have begun, want %d", begun.Load(), calls)
		}
	})
}

// TestLateCallsAreRead checks that an HTTP server reads from a connection although many calls have passed their deadlines while their
// handlers wait for windows, which it can only get by reading.
func TestLateCallsAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, answered := peerOfHTTP(t, func(caller grpc.ServerStream) error {
			for {
				if err := caller.SendMsg(&Fragment{data: make([]byte, maxFrame)}); err != nil {
					return err
				}
			}
		})
		for i := range uint32(3 * maxUnfinished) {
			if err := p.open(2*i+1, p.request("grpc-timeout", "1S")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		go func() { _ = p.WritePing(false, [8]byte{1}) }()
		<-answered
	})
}

// TestUnfinishedCalls checks that nothing is read while the handlers of too many canceled calls have not ended.
func TestUnfinishedCalls(t *testing.T) {
	for name, end := range map[string]func(b *Brake){
		"ended": func(b *Brake) { b.addUnfinished(-1) }, "closed": func(b *Brake) { _ = b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer there.Close()
				b := NewBudget(Limits{}, 1, func(uint32, Reason, bool) {}).Brake(here, 7)
				defer b.Close()
				b.addUnfinished(maxUnfinished)
				go func() { _, _ = there.Write([]byte{1}) }()
				var hasRead atomic.Bool
				go func() {
					_, _ = b.Read(make([]byte, 1))
					hasRead.Store(true)
				}()
				if synctest.Wait(); hasRead.Load() {
					t.Errorf("a connection with %d unfinished calls is read from", maxUnfinished)
				}
				end(b)
				if synctest.Wait(); !hasRead.Load() {
					t.Error("reading has not ended")
				}
			})
		})
	}
}
