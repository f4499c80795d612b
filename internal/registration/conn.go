package registration

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

// Bounds of what a plugin may send. An answer holds a type, a name, an endpoint and some dozens of versions.
const (
	// maxAnswer bounds a message. With padding, it fits into the initial HTTP/2 window, so that no call needs to enlarge the window.
	maxAnswer = 60 << 10
	// maxHeaders bounds a header list, as RFC 9113 section 6.5.2 counts it.
	maxHeaders = 16 << 10
	// maxCall bounds the bytes that are read in one call, including frame headers. It ends an endless stream of PING, SETTINGS or empty
	// frames.
	maxCall = 128 << 10
	// readBuffer and writeBuffer are large enough for all that is usually received and sent in one call.
	readBuffer  = 512
	writeBuffer = 256
	maxWire     = 4 << 10 // of a write buffer that is reused
	// headerTable is the default of SETTINGS_HEADER_TABLE_SIZE.
	headerTable = 4 << 10

	// initialWindow is the flow-control window at the start of a connection and of a stream (RFC 9113 section 6.9.2).
	initialWindow = 1<<16 - 1
	maxWindow     = 1<<31 - 1
)

// Errors of a connection, in addition to those of the framer and the socket.
var (
	errTooMuch  = fmt.Errorf("more than %d bytes in one call", maxCall)
	errProtocol = errors.New("HTTP/2 protocol violated")
	errHeld     = status.Error(codes.Unavailable, "the connection is held and makes no calls")
)

// conn is the client's side of an HTTP/2 connection (RFC 9113) with at most one open stream. It reads nothing between calls. It writes
// acknowledgements before it waits for more frames, and with the next call or some time after a call.
type conn struct {
	*wire  // nil if failed is errHeld
	net    *net.UnixConn
	now    syscall.RawConn // if set, reads and writes do not block
	budget int             // how many bytes the peer may still send in this call
	failed error           // the status error of all further calls

	// interrupting counts functions of other goroutines that may still set a deadline or write. delay is the timer of acknowledge.
	interrupting sync.WaitGroup
	delay        *time.Timer

	greeted bool   // the peer's first SETTINGS were received
	stream  uint32 // the latest stream
	goAway  string // why the peer accepts no new streams; empty if it does

	maxStreams   uint32 // the peer's SETTINGS_MAX_CONCURRENT_STREAMS
	peerInitial  int64  // the peer's SETTINGS_INITIAL_WINDOW_SIZE
	sendWindow   int64  // what may be sent on the connection
	streamWindow int64  // what may be sent on the stream; negative if the peer lowered its SETTINGS_INITIAL_WINDOW_SIZE
	recvWindow   int64  // what the peer may send on the connection
}

func (c *conn) init(nc *net.UnixConn) {
	*c = conn{
		net: nc, maxStreams: 1, peerInitial: initialWindow, sendWindow: initialWindow, recvWindow: initialWindow,
	}
	c.wire, _ = wires.Get().(*wire)
	c.reader.conn = c
	c.in.Reset(nc)
}

// release makes the wire of a held connection available to another connection.
func (c *conn) release() {
	w := c.wire
	c.wire, c.failed = nil, errHeld
	if w.out.Cap() > maxWire {
		return
	}
	w.reader.conn = nil
	w.in.Reset(nil)
	w.framer.ReadMetaHeaders.SetMaxDynamicTableSize(0) // empties the table
	w.framer.ReadMetaHeaders.SetMaxDynamicTableSize(headerTable)
	wires.Put(w)
}

// wire has the buffers that a connection needs for calls, most of its memory. A connection that is held without an error does not need it
// any more, and another connection reuses it.
type wire struct {
	reader frameReader
	in     bufio.Reader
	out    bytes.Buffer // frames to be written
	block  []byte       // the headers of the last request
	framer *http2.Framer
}

var wires = sync.Pool{New: func() any {
	w := &wire{in: *bufio.NewReaderSize(nil, readBuffer)}
	w.out.Grow(writeBuffer)
	w.framer = http2.NewFramer(&w.out, &w.reader)
	w.framer.SetReuseFrames()
	w.framer.SetMaxReadFrameSize(16 << 10) // the default of SETTINGS_MAX_FRAME_SIZE
	w.framer.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	w.framer.MaxHeaderListSize = maxHeaders
	return w
}}

// deadline returns the earlier of ctx's deadline and the end of timeout; zero for none.
func deadline(ctx context.Context, timeout time.Duration) time.Time {
	at, bounded := ctx.Deadline()
	if timeout <= 0 {
		return at
	}
	if end := time.Now().Add(timeout); !bounded || end.Before(at) {
		return end
	}
	return at
}

// call sends a request and returns the message of the answer. It sets the deadline of the connection, because a timer in a context would
// need as much memory as the whole request.
func (c *conn) call(ctx context.Context, deadline time.Time, headers, body []byte) ([]byte, error) {
	if c.failed != nil {
		return nil, c.failed
	}
	c.endDelay()
	err := done(ctx, deadline)
	if err == nil {
		err = c.net.SetDeadline(deadline)
	}
	if err != nil {
		c.failed = callError(ctx, deadline, err)
		return nil, c.failed
	}
	c.interrupting.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer c.interrupting.Done()
		_ = c.net.SetDeadline(past)
	})
	a := answer{}
	err = c.exchange(deadline, headers, body, &a)
	if stop() {
		c.interrupting.Done()
	} else {
		c.interrupting.Wait()
	}
	if err != nil {
		c.failed = callError(ctx, deadline, err)
		return nil, c.failed
	}
	c.acknowledgeLater()
	return a.result()
}

// done returns the error of ctx, or DeadlineExceeded after the deadline. The plugin knows the deadline and may end the call first.
func done(ctx context.Context, deadline time.Time) error {
	if err := ctx.Err(); err != nil || deadline.IsZero() || time.Until(deadline) > 0 {
		return err
	}
	return context.DeadlineExceeded
}

// callError converts an error that ends the connection to a status error.
func callError(ctx context.Context, deadline time.Time, err error) error {
	var connError http2.ConnectionError
	var streamError http2.StreamError
	ended := done(ctx, deadline)
	switch {
	case ended != nil:
		return status.Errorf(status.FromContextError(ended).Code(), "no answer from the plugin: %v", ended)
	case status.Code(err) != codes.Unknown:
		return err
	case errors.Is(err, errTooMuch):
		return status.Errorf(codes.ResourceExhausted, "the plugin sends %v", err)
	case errors.Is(err, errProtocol), errors.Is(err, http2.ErrFrameTooLarge), errors.As(err, &connError), errors.As(err, &streamError):
		return status.Errorf(codes.Internal, "the plugin does not speak gRPC: %v", err)
	default:
		return status.Errorf(codes.Unavailable, "the connection to the plugin ended: %v", err)
	}
}

// exchange sends a request and reads frames until the answer is complete. An error ends the connection.
func (c *conn) exchange(deadline time.Time, headers, body []byte, a *answer) error {
	c.budget = maxCall
	if err := c.open(deadline, headers); err != nil {
		return err
	}
	for {
		var err error
		if body, err = c.send(body); err != nil {
			return err
		}
		f, err := c.read()
		if err != nil {
			return err
		}
		if f.Header().StreamID == c.stream {
			err = c.receive(f, a)
		} else {
			err = c.control(f)
		}
		if err != nil {
			return err
		}
		if a.ended {
			if len(body) > 0 { // the answer came before the whole request was sent
				err = c.framer.WriteRSTStream(c.stream, http2.ErrCodeCancel)
				c.flush()
			}
			return err
		}
	}
}

// open starts a stream with the headers of a request. On a new connection it first writes the preface.
func (c *conn) open(deadline time.Time, headers []byte) error {
	switch {
	case c.goAway != "":
		return status.Error(codes.Unavailable, c.goAway)
	case c.maxStreams == 0:
		return status.Error(codes.Unavailable, "the plugin allows no streams")
	case c.stream == 0:
		c.stream = 1
		c.out.WriteString(http2.ClientPreface)
		err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaders})
		if err != nil {
			return err
		}
	default:
		c.stream += 2
	}
	if c.recvWindow < initialWindow/2 {
		if err := c.framer.WriteWindowUpdate(0, uint32(initialWindow-c.recvWindow)); err != nil {
			return err
		}
		c.recvWindow = initialWindow
	}
	c.streamWindow = c.peerInitial
	c.block = appendTimeout(deadline, append(c.block[:0], headers...))
	return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: c.block, EndHeaders: true})
}

// send queues as much of the body as the peer's windows allow, and returns the rest. A body is far smaller than the minimum of
// SETTINGS_MAX_FRAME_SIZE.
func (c *conn) send(body []byte) (rest []byte, err error) {
	n := min(int64(len(body)), c.sendWindow, c.streamWindow)
	if n <= 0 {
		return body, nil
	}
	c.sendWindow -= n
	c.streamWindow -= n
	return body[n:], c.framer.WriteData(c.stream, n == int64(len(body)), body[:n])
}

// read reads a frame. The first one must be the peer's settings.
func (c *conn) read() (http2.Frame, error) {
	f, err := c.framer.ReadFrame()
	if err != nil {
		return nil, err
	}
	if settings, ok := f.(*http2.SettingsFrame); !c.greeted && (!ok || settings.IsAck()) {
		return nil, fmt.Errorf("%w: it starts with a frame of type %v instead of its settings", errProtocol, f.Header().Type)
	}
	c.greeted = true
	return f, nil
}

// control handles a frame that concerns the connection, or a stream that has ended.
func (c *conn) control(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if err := f.ForeachSetting(c.set); err != nil {
			return err
		}
		return c.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return c.framer.WritePing(true, f.Data)
	case *http2.GoAwayFrame:
		c.goAway = fmt.Sprintf("the plugin is ending the connection: GOAWAY, %v %q", f.ErrCode, f.DebugData()[:min(len(f.DebugData()), 256)])
		if f.LastStreamID < c.stream {
			return status.Error(codes.Unavailable, c.goAway)
		}
		return nil
	case *http2.WindowUpdateFrame:
		if f.StreamID != 0 {
			return nil
		}
		return widen(&c.sendWindow, int64(f.Increment))
	case *http2.MetaHeadersFrame, *http2.DataFrame, *http2.PushPromiseFrame:
		return fmt.Errorf("%w: a frame of type %v on stream %d, which is not open", errProtocol, f.Header().Type, f.Header().StreamID)
	default: // ignore PRIORITY and unknown frames, and RST_STREAM for a stream that has ended
		return nil
	}
}

// set applies one setting of the peer. SETTINGS_HEADER_TABLE_SIZE is ignored because requests do not use the dynamic table, and
// SETTINGS_MAX_FRAME_SIZE because requests are small.
func (c *conn) set(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingMaxConcurrentStreams:
		c.maxStreams = s.Val
	case http2.SettingInitialWindowSize:
		delta := int64(s.Val) - c.peerInitial
		c.peerInitial = int64(s.Val)
		return widen(&c.streamWindow, delta)
	default:
	}
	return nil
}

func widen(window *int64, delta int64) error {
	*window += delta
	if *window > maxWindow {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	return nil
}

func (c *conn) receive(f http2.Frame, a *answer) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		if f.Truncated {
			return status.Errorf(codes.ResourceExhausted, "the plugin sends more than %d bytes of headers", maxHeaders)
		}
		return a.addHeaders(f)
	case *http2.DataFrame:
		if c.recvWindow -= int64(f.Length); c.recvWindow < 0 {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		return a.addData(f)
	case *http2.RSTStreamFrame:
		return h2proxy.StatusOfReset(f.ErrCode)
	case *http2.WindowUpdateFrame:
		return widen(&c.streamWindow, int64(f.Increment))
	case *http2.PushPromiseFrame:
		return fmt.Errorf("%w: PUSH_PROMISE", errProtocol)
	default:
		return nil
	}
}
