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
	// maxAnswer bounds a message. It fits into the window that HTTP/2 gives a peer at the start, with room for padding, so that no
	// call needs to widen the window.
	maxAnswer = 60 << 10
	// maxHeaders bounds a header list, as RFC 9113 section 6.5.2 counts it.
	maxHeaders = 16 << 10
	// maxCall bounds all that is read in one call, frame headers included, and so the number of frames as well: an endless stream of
	// PING, SETTINGS or empty frames ends here.
	maxCall = 128 << 10
	// readBuffer holds all that a plugin usually sends in one call, and writeBuffer all that is sent to it.
	readBuffer  = 512
	writeBuffer = 256
	maxWire     = 4 << 10 // of a buffer for writing that is used again
	// headerTable is SETTINGS_HEADER_TABLE_SIZE as it is unless announced otherwise.
	headerTable = 4 << 10

	// initialWindow is the flow-control window at the start of a connection and of a stream (RFC 9113 section 6.9.2).
	initialWindow = 1<<16 - 1
	maxWindow     = 1<<31 - 1
)

// Errors of a connection beside those of the framer and the socket.
var (
	errTooMuch  = fmt.Errorf("more than %d bytes in one call", maxCall)
	errProtocol = errors.New("HTTP/2 protocol violated")
	errHeld     = status.Error(codes.Unavailable, "the connection is held and makes no calls")
)

// conn is the client's side of one HTTP/2 connection (RFC 9113) on which calls follow one another: there is one open stream or none.
// Nothing is read between calls. What it owes the peer, the acknowledgements, is written before it waits for more and at the end of a call.
type conn struct {
	*wire  // nil if failed is errHeld
	net    *net.UnixConn
	now    syscall.RawConn // if set, reads and writes do not wait
	budget int             // how many bytes the peer may still send in this call
	failed error           // why no further call is possible; a status error

	// interrupting is done when nothing sets a deadline any more.
	interrupting sync.WaitGroup

	greeted bool   // the peer's first SETTINGS have come
	stream  uint32 // the latest stream
	goAway  string // why the peer takes no new stream; empty if it does

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

// release gives the wire of a connection that rests to the next one.
func (c *conn) release() {
	w := c.wire
	c.wire, c.failed = nil, errHeld
	if w.out.Cap() > maxWire {
		return
	}
	w.reader.conn = nil
	w.in.Reset(nil)
	w.framer.ReadMetaHeaders.SetMaxDynamicTableSize(0) // which empties it
	w.framer.ReadMetaHeaders.SetMaxDynamicTableSize(headerTable)
	wires.Put(w)
}

// wire is what a connection needs for calls: most of its memory. When all its calls have been made, and none has broken it, the next
// connection uses it.
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
	w.framer.SetMaxReadFrameSize(16 << 10) // SETTINGS_MAX_FRAME_SIZE as it is unless announced otherwise
	w.framer.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	w.framer.MaxHeaderListSize = maxHeaders
	return w
}}

// deadline is when a call ends at the latest; zero if nothing says so.
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

// call sends a request, headers and body, and returns the message of the answer. The deadline is the connection's: a timer in a context
// costs a plugin as much as all that is sent to it.
func (c *conn) call(ctx context.Context, deadline time.Time, headers, body []byte) ([]byte, error) {
	if c.failed != nil {
		return nil, c.failed
	}
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
	c.acknowledge()
	return a.result()
}

// done is ctx.Err, or says that the deadline has passed. The plugin knows it too, and may be the first to act on it.
func done(ctx context.Context, deadline time.Time) error {
	if err := ctx.Err(); err != nil || deadline.IsZero() || time.Until(deadline) > 0 {
		return err
	}
	return context.DeadlineExceeded
}

// callError makes a status error of an error that ends the connection.
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
			if len(body) > 0 { // answered before all of the request was there
				err = c.framer.WriteRSTStream(c.stream, http2.ErrCodeCancel)
				c.flush()
			}
			return err
		}
	}
}

// open starts a stream with the headers of a request; the first one of a connection follows the preface.
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

// send adds as much of the body as the peer's windows allow to what is to be written, and returns the rest. A body is far smaller than
// the smallest SETTINGS_MAX_FRAME_SIZE.
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
	default: // PRIORITY and what is unknown mean nothing here, RST_STREAM nothing for a stream that has ended
		return nil
	}
}

// set takes over one setting of the peer. Its SETTINGS_HEADER_TABLE_SIZE does not matter, because requests use no dynamic table, and its
// SETTINGS_MAX_FRAME_SIZE does not, because requests are small.
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
