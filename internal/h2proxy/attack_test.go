package h2proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

const patience = 2 * time.Minute

// until waits until something is true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to pass that %s", what)
		}
	}
}

// peer is the other end of a connection, which does whatever a test says.
type peer struct {
	net.Conn
	*http2.Framer
	t       testing.TB
	block   bytes.Buffer
	encoder *hpack.Encoder
}

func newPeer(t testing.TB, conn net.Conn) *peer {
	p := &peer{Conn: conn, Framer: http2.NewFramer(conn, conn), t: t}
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.MaxHeaderListSize = 16 << 20
	p.encoder = hpack.NewEncoder(&p.block)
	return p
}

// fields returns encoded headers.
func (p *peer) fields(pairs ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = p.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return p.block.Bytes()
}

// request returns the headers of a call.
func (p *peer) request(more ...string) []byte {
	return p.fields(append([]string{":method", "POST", ":scheme", "http", ":path", "/a.B/C", ":authority", "x", "content-type", "application/grpc",
		"te", "trailers"}, more...)...)
}

// headers sends headers, in as many frames as they need.
func (p *peer) headers(id uint32, block []byte, end bool) {
	p.t.Helper()
	first := block[:min(len(block), maxFrame)]
	rest := block[len(first):]
	err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(rest) == 0, EndStream: end})
	for err == nil && len(rest) > 0 {
		next := rest[:min(len(rest), maxFrame)]
		rest = rest[len(next):]
		err = p.WriteContinuation(id, len(rest) == 0, next)
	}
	if err != nil {
		p.t.Error(err)
	}
}

// next returns the next frame of a kind.
func next[F http2.Frame](p *peer) F {
	p.t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(patience))
	for {
		f, err := p.ReadFrame()
		if err != nil {
			var none F
			p.t.Errorf("no %T came: %v", none, err)
			return none
		}
		if f, ok := f.(F); ok {
			return f
		}
	}
}

// status reads until a call has ended, and returns the status, or how it was reset.
func (p *peer) status(id uint32) string {
	p.t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(patience))
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID == id && f.StreamEnded() {
				return valueOf(f.Fields, ":status") + " " + valueOf(f.Fields, statusKey) + " " + valueOf(f.Fields, messageKey)
			}
		case *http2.DataFrame:
			if f.StreamID == id && f.StreamEnded() {
				return "no trailers"
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return f.ErrCode.String()
			}
		}
	}
}

// bed is a server under attack.
type bed struct {
	*Server
	t      *testing.T
	budget *Budget
	path   string
}

func newBed(t *testing.T, limits Limits, handle func(caller grpc.ServerStream) error) *bed {
	t.Helper()
	b := &bed{t: t, path: filepath.Join(t.TempDir(), "s"), budget: NewBudget(limits, 1, func(uint32, Reason, bool) {})}
	b.Server = NewServer(ServerConfig{Budget: b.budget, Timeout: time.Second, Handle: handle})
	l, err := net.Listen("unix", b.path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = b.Serve(l) }()
	t.Cleanup(func() {
		drained := make(chan struct{})
		go func() {
			b.Drain()
			close(drained)
		}()
		b.Stop()
		select {
		case <-drained:
		case <-time.After(patience):
			t.Error("the server does not end")
		}
		if n := b.budget.Bytes(); n != 0 || b.calls() != 0 {
			t.Errorf("%d bytes and %d calls are still counted", n, b.calls())
		}
	})
	return b
}

// calls returns how many are in progress.
func (b *bed) calls() int { return b.budget.calls.Sum() }

// waiting returns how much waits to be written, to all callers.
func (b *bed) waiting() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for nc := range b.conns {
		c, ok := nc.(*conn)
		if !ok {
			continue
		}
		c.mu.Lock()
		n += c.writing + len(c.out.data)
		c.mu.Unlock()
	}
	return n
}

// dial connects; nothing was said.
func (b *bed) dial() *peer {
	b.t.Helper()
	conn, err := net.Dial("unix", b.path)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return newPeer(b.t, conn)
}

// caller connects and says what every caller says.
func (b *bed) caller(settings ...http2.Setting) *peer {
	b.t.Helper()
	p := b.dial()
	_, err := p.Write([]byte(http2.ClientPreface))
	if err = errors.Join(err, p.WriteSettings(settings...), p.WriteSettingsAck()); err != nil {
		b.t.Fatal(err)
	}
	return p
}

// hang never answers.
func hang(caller grpc.ServerStream) error {
	<-caller.Context().Done()
	return caller.Context().Err()
}

// flood writes the same again and again, and reads nothing, until the server takes no more.
func (p *peer) flood(b []byte, most int) (sent int) {
	b = bytes.Repeat(b, max(1, (16<<10)/len(b)))
	for sent < most {
		_ = p.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := p.Write(b)
		sent += n
		if err != nil {
			break
		}
	}
	return sent
}

// TestFloods: whoever asks for answers and does not read them is not answered without end.
func TestFloods(t *testing.T) {
	t.Parallel()
	for name, frame := range map[string]func(f *http2.Framer) error{
		"ping":     func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) },
		"settings": func(f *http2.Framer) error { return f.WriteSettings() },
		"unknown stream": func(f *http2.Framer) error { // of a window of zero
			return f.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, []byte{0, 0, 0, 0})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, DefaultLimits, hang)
			var one bytes.Buffer
			if err := frame(http2.NewFramer(&one, nil)); err != nil {
				t.Fatal(err)
			}
			p := b.caller()
			p.flood(one.Bytes(), 1<<20)
			if n := b.waiting(); n > 128<<10 {
				t.Errorf("%d bytes of answers wait", n)
			}
		})
	}
}

// TestRefusedCallsFlood: calls that are refused at once need room for the refusals.
func TestRefusedCallsFlood(t *testing.T) {
	t.Parallel()
	b := newBed(t, Limits{UserBytes: 1 << 20, Bytes: 1 << 20}, hang) // which allows no call
	p := b.caller()
	var calls bytes.Buffer
	f := http2.NewFramer(&calls, nil)
	id := uint32(1)
	for sent := 0; sent < 8<<20; {
		calls.Reset()
		for range 500 {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.request(), EndHeaders: true, EndStream: true})
			id += 2
		}
		_ = p.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := p.Write(calls.Bytes())
		if sent += n; err != nil {
			break
		}
	}
	if n := b.waiting(); n > 128<<10 {
		t.Errorf("%d bytes of answers wait", n)
	}
}

// TestUploadThatReadsNothing: updates of windows do not wait without end for a caller who sends and never reads.
func TestUploadThatReadsNothing(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	b := newBed(t, Limits{UserCalls: 1, Calls: 1}, func(caller grpc.ServerStream) error {
		for f := new(Fragment); ; {
			if err := caller.RecvMsg(f); err != nil {
				return err
			}
			got.Add(int64(f.Len()))
		}
	})
	p := b.caller()
	p.headers(1, p.request(), false)
	data := make([]byte, baseWindow/2)
	until(t, "the call has begun", func() bool { return b.calls() == 1 })
	for sent := 0; sent < 256<<20; {
		if p.WriteData(1, false, data) != nil {
			return
		}
		sent += len(data)
		until(t, "all was read", func() bool { return got.Load() == int64(sent) || b.calls() == 0 })
		if b.calls() == 0 {
			return
		}
	}
	t.Errorf("it goes on, with %d bytes that wait to be written", b.waiting())
}

// lone returns a connection that nobody serves, on which calls may be opened.
func lone(t *testing.T) *conn {
	here, there := net.Pipe()
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	c := newConn(here, NewBudget(Limits{}, 1, func(uint32, Reason, bool) {}), 7, 4<<10)
	c.acked = true
	close(c.settled)
	return c
}

// TestCallsOfALostConnection: calls that were read after the connection was lost do not begin, or they would never end.
func TestCallsOfALostConnection(t *testing.T) {
	t.Parallel()
	c := lone(t)
	c.opened = func(*http2.MetaHeadersFrame, *stream) { t.Error("a call begins") }
	c.fail(io.EOF)
	f := &http2.MetaHeadersFrame{HeadersFrame: &http2.HeadersFrame{FrameHeader: http2.FrameHeader{Type: http2.FrameHeaders, StreamID: 1}}}
	if err := c.handle(f); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestTurns: a stream that has sent in the meantime does not keep the turn that it waited for.
func TestTurns(t *testing.T) {
	t.Parallel()
	c := lone(t)
	first, quick, last := newStream(c, 1), newStream(c, 3), newStream(c, 5)
	send := func(s *stream, n int, want bool) {
		t.Helper()
		if rest, err := s.sendSome(make([]byte, n), false); err != nil || (rest == nil) != want {
			t.Errorf("of %d bytes %d are left: %v", n, len(rest), err)
		}
	}
	_, _ = c.out.Write(make([]byte, baseOut))
	for _, s := range []*stream{first, quick, last} {
		send(s, 1, false)
	}
	write := func() {
		c.take()
		c.take()
	}
	write()                     // now it is the turn of the first,
	send(quick, maxFrame, true) // but this one is quicker, because its own window grew,
	send(first, 1, false)
	write()
	if len(last.writable) != 1 {
		t.Error("the last waits without end")
	}
}

// TestRapidReset: calls that are reset at once (CVE-2023-44487) count until they have ended.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	limits := DefaultLimits
	limits.UserCalls = 10
	b := newBed(t, limits, func(grpc.ServerStream) error { <-release; return nil })
	p := b.caller()
	go func() { _, _ = io.Copy(io.Discard, p.Conn) }()
	large := strings.Repeat("x", 10<<10)
	for id := uint32(1); id < 2000; id += 2 {
		p.headers(id, p.request("large", large), false)
		if err := p.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "there are as many calls as may be", func() bool { return b.calls() == 10 })
	if n := b.budget.Bytes(); n < 10*len(large) {
		t.Errorf("%d bytes of metadata are counted, and 10 calls hold %d", n, 10*len(large))
	}
	close(release)
}

// TestHeadersThatDoNotEnd: metadata that come in several frames, of which the last never comes, count, and are not waited for without end.
func TestHeadersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	b := newBed(t, Limits{UserBytes: 4 << 20, Bytes: 16 << 20, UserCalls: 10, Calls: 10}, hang)
	var open []*peer
	for range 20 {
		p := b.caller()
		block := p.request("large", strings.Repeat("x", 1000<<10))
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:maxFrame]})
		for block = block[maxFrame:]; len(block) > maxFrame; block = block[maxFrame:] {
			if p.WriteContinuation(1, false, block[:maxFrame]) != nil {
				break
			}
		}
		open = append(open, p)
	}
	if n := b.budget.Bytes(); n == 0 || n > 4<<20 {
		t.Errorf("%d bytes are counted", n)
	}
	for _, p := range open {
		if _, err := io.Copy(io.Discard, p.Conn); errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	until(t, "nothing is counted", func() bool { return b.budget.Bytes() == 0 })
}

// TestSettingsThatAreNotTaken: whoever does not take the settings is cut off.
func TestSettingsThatAreNotTaken(t *testing.T) {
	t.Parallel()
	b := newBed(t, DefaultLimits, hang)
	p := b.dial()
	_, _ = p.Write([]byte(http2.ClientPreface))
	_ = p.WriteSettings()
	_ = p.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, p.Conn); err != nil {
		t.Error(err)
	}
}

// TestNotGRPC: what is no gRPC is refused.
func TestNotGRPC(t *testing.T) {
	t.Parallel()
	b := newBed(t, DefaultLimits, func(caller grpc.ServerStream) error { return caller.SendMsg(&Fragment{data: []byte("x")}) })
	for kind, want := range map[string]string{
		"application/grpc": "200 0", "application/grpc+proto": "200 0", "Application/gRPC;x=y": "200 0",
		"application/grpc-web": "415", "application/grpc-web+proto": "415", "application/grpcx": "415", "text/plain": "415", "": "415",
	} {
		p := b.caller()
		p.headers(1, p.fields(":method", "POST", ":scheme", "http", ":path", "/a.B/C", ":authority", "x", "content-type", kind), true)
		first := next[*http2.MetaHeadersFrame](p)
		got := valueOf(first.Fields, ":status")
		if got == "200" {
			got += " " + valueOf(next[*http2.MetaHeadersFrame](p).Fields, statusKey)
		}
		if got != want {
			t.Errorf("%q is answered with %q, want %q", kind, got, want)
		}
	}
	for _, text := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("\x00", 100), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET / HTTP/1.1\r\n\r\n"} {
		p := b.dial()
		_, _ = p.Write([]byte(text))
		_ = p.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, p.Conn); err != nil && !strings.Contains(err.Error(), "reset by peer") {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// TestDrainOfASilentCaller: a caller who answers nothing does not hold up the drain if it has no calls.
func TestDrainOfASilentCaller(t *testing.T) {
	t.Parallel()
	b := newBed(t, DefaultLimits, hang)
	p := b.caller()
	next[*http2.SettingsFrame](p)
	drained := make(chan struct{})
	go func() {
		b.Drain()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(patience):
		t.Error("the drain waits")
	}
}

// TestLargeMetadataNobodyReads: metadata that wait to be written count.
func TestLargeMetadataNobodyReads(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1000<<10)
	var handled atomic.Int64
	b := newBed(t, Limits{UserBytes: 4 << 20, Bytes: 16 << 20, UserCalls: 100, Calls: 100}, func(caller grpc.ServerStream) error {
		handled.Add(1)
		caller.SetTrailer(metadata.Pairs("large", large))
		return nil
	})
	for range 20 {
		p := b.caller()
		p.headers(1, p.request(), true)
	}
	until(t, "all calls have ended", func() bool { return handled.Load() == 20 && b.calls() == 0 })
	if n := b.waiting(); n > 5<<20 {
		t.Errorf("%d bytes wait to be written", n)
	}
	p := b.caller()
	p.headers(1, p.request(), true)
	if got := p.status(1); !strings.HasPrefix(got, "200 8 too much is waiting in memory") {
		t.Errorf("what has no room ends with %q", got)
	}
}
