package h2proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func isEnd(err error) bool { return errors.Is(err, io.EOF) }

// Handler handles a call, a stream of [Fragment]s, and returns its status. Each call has a goroutine of its own.
type Handler func(caller grpc.ServerStream) error

// ServerConfig is what a [Server] works with.
type ServerConfig struct {
	Handle Handler
	// Budget bounds what waits in memory and the calls.
	Budget *Budget
	// Timeout bounds the time in which a caller says that it speaks HTTP/2, and before that the time of Introduce.
	Timeout time.Duration
	// Introduce, if it is not nil, finds out whose a connection is, before anything is read from it, and returns the one to use. If it
	// returns an error, the connection is closed. It is a function, as tls.Config.GetConfigForClient is, because the caller of NewServer
	// authenticates.
	Introduce func(ctx context.Context, nc net.Conn) (Introduced, error)
	// Streams is how many calls in progress a caller is told to have at most on one connection; zero for no such word. It is the budget
	// that bounds them.
	Streams uint32
	// Age is how long a connection takes new calls; zero for any time.
	Age time.Duration
	// Silence is after which time without a frame a caller is asked whether it is there, and Answer how long it may take; zero for never.
	Silence, Answer time.Duration
}

// Server takes calls. Its callers are users by the method UID of their connections, where those have it, or as they are introduced. It is
// safe for concurrent use.
type Server struct {
	config ServerConfig

	mu        sync.Mutex
	listeners []net.Listener
	entering  map[net.Conn]bool // whose callers are not known yet; nil while there is none, as conns is: a host has many idle servers
	conns     map[*conn]bool
	draining  bool
	left      int           // goroutines: connections and calls
	done      chan struct{} // closed when it is draining and nothing is left
}

// NewServer returns a server.
func NewServer(config ServerConfig) *Server {
	return &Server{config: config, done: make(chan struct{})}
}

// Serve takes connections until the listener fails or the server ends, which is no error. It closes the listener.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	draining := s.draining
	if !draining {
		s.listeners = append(s.listeners, l)
	}
	s.mu.Unlock()
	if draining {
		return l.Close()
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listeners = slices.DeleteFunc(s.listeners, func(other net.Listener) bool { return other == l })
		_ = l.Close()
	}()
	pause := time.Duration(0)
	for {
		nc, err := l.Accept()
		if err == nil {
			pause = 0
			s.take(nc)
			continue
		}
		s.mu.Lock()
		draining := s.draining
		s.mu.Unlock()
		if draining {
			return nil
		}
		if temporary, ok := err.(interface{ Temporary() bool }); !ok || !temporary.Temporary() {
			return fmt.Errorf("cannot take connections: %w", err)
		}
		// There are too few descriptors.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.done:
		}
		timer.Stop()
	}
}

// end is called when a connection has been served; with nil, when a call has ended.
func (s *Server) end(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c != nil {
		if delete(s.conns, c); len(s.conns) == 0 {
			s.conns = nil
		}
	}
	s.left--
	s.finish()
}

// finish says that nothing is left; mu is held.
func (s *Server) finish() {
	if s.draining && s.left == 0 && !isClosed(s.done) {
		close(s.done)
	}
}

// Drain takes no further calls and returns when the last one has ended, or after Stop.
func (s *Server) Drain() {
	s.mu.Lock()
	s.draining = true
	for _, l := range s.listeners {
		_ = l.Close()
	}
	entering, conns := slices.Collect(maps.Keys(s.entering)), slices.Collect(maps.Keys(s.conns))
	s.finish()
	s.mu.Unlock()
	for _, nc := range entering {
		_ = nc.Close() // its caller cannot have made a call
	}
	for _, c := range conns {
		c.drain()
	}
	silent := time.AfterFunc(silentTime, func() {
		for _, c := range conns {
			c.hush()
		}
	})
	defer silent.Stop()
	<-s.done
}

// Stop ends the connections of a server that is being drained, and with them the calls.
func (s *Server) Stop() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.fail(errClosed)
	}
}

// opened begins a call over a connection that has a context; its mu is held.
func (s *Server) opened(from context.Context, f *http2.MetaHeadersFrame, st *stream) {
	c := st.c
	if f.Truncated {
		st.answer(http.StatusOK, status.Newf(codes.ResourceExhausted, "the metadata of the call have more than %d bytes", MaxMetadata))
		return
	}
	r, err := parseRequest(f.Fields)
	if wrong, ok := errors.AsType[*malformed](err); ok {
		st.answerMalformed(wrong)
		return
	}
	if err := c.budget.begin(c.uid); err != nil {
		st.answer(http.StatusOK, status.Convert(err))
		return
	}
	if st.onHeaders(f); st.err != nil {
		c.budget.end(c.uid)
		return
	}
	ctx, cancel := r.context(from)
	to := streamCaller{st}
	call := &serverCall{caller: to, kind: r.kind, uid: st.uid, budget: st.budget}
	call.ctx = grpc.NewContextWithServerTransportStream(ctx, transport{call, r.method})
	st.headers, st.trailers = nil, nil
	st.onEnd = func(error) { cancel() }
	s.mu.Lock()
	s.left++ // the connection is one too, so the server is not done
	s.mu.Unlock()
	go func() {
		defer s.end(nil)
		defer c.budget.end(c.uid)
		defer cancel()
		err := errNoReturn
		defer func() { to.end(call, err) }()
		err = s.config.Handle(call)
	}()
}

// answer ends a stream that does not become a call, with an HTTP status and that of gRPC; c.mu is held.
func (s *stream) answer(answer int, st *status.Status) {
	s.c.writeFields(s.id, statusFields([]hpack.HeaderField{
		{Name: ":status", Value: strconv.Itoa(answer)}, {Name: contentTypeKey, Value: contentType},
	}, st), true)
	s.answered, s.sentEnd = true, true
	s.c.flushAnswer()
	if !s.recvEnded {
		s.reset(http2.ErrCodeNo, &resetError{http2.ErrCodeNo})
	}
	s.remove()
}

// serverCall is a call that one of the two servers has accepted, as a [grpc.ServerStream] of [Fragment]s. One goroutine receives and one
// sends.
type serverCall struct {
	caller

	ctx    context.Context //nolint:containedctx // A grpc.ServerStream has one.
	kind   string          // the content type
	uid    uint32
	budget *Budget
	held   []byte // by the last fragment that was received

	mu              sync.Mutex
	header, trailer metadata.MD
	sent            bool // the header
}

var _ grpc.ServerStream = (*serverCall)(nil)

// caller is the other end of a call: a stream of a [Server], or a request of an HTTP server. Its errors are statuses, and io.EOF.
type caller interface {
	sendHeader(ctx context.Context, kind string, md metadata.MD) error
	sendData(ctx context.Context, data []byte) error
	// receive returns data, and whether they are the last. It gives back what it returned before.
	receive(ctx context.Context, before []byte) (data []byte, last bool, err error)
	// Whole reports whether all that the caller sends has come, and is in one fragment at most.
	Whole() bool
}

// UID returns the user who calls, and Budget what bounds the call.
func (c *serverCall) UID() uint32     { return c.uid }
func (c *serverCall) Budget() *Budget { return c.budget }

func (c *serverCall) Context() context.Context { return c.ctx }

func (c *serverCall) SetHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.header = metadata.Join(c.header, md)
	return nil
}

func (c *serverCall) SetTrailer(md metadata.MD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trailer = metadata.Join(c.trailer, md)
}

func (c *serverCall) SendHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return status.Error(codes.Internal, "the header was sent already")
	}
	err := c.sendHeader(c.ctx, c.kind, metadata.Join(c.header, md))
	c.sent = err == nil
	return err
}

// ended returns the trailer of a call that ends, which has the header unless that was sent.
func (c *serverCall) ended() (trailer metadata.MD, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return c.trailer, true
	}
	return metadata.Join(c.header, c.trailer), false
}

func (c *serverCall) SendMsg(m any) error {
	f, ok := m.(*Fragment)
	if !ok {
		return errNotFragment(m)
	}
	if !c.sent { // only this goroutine sends it
		if err := c.SendHeader(nil); err != nil {
			return err
		}
	}
	return c.sendData(c.ctx, f.data)
}

func (c *serverCall) RecvMsg(m any) (err error) {
	f, ok := m.(*Fragment)
	if !ok {
		return errNotFragment(m)
	}
	f.data, f.last, err = c.receive(c.ctx, c.held)
	c.held = f.data
	return err
}

func errNotFragment(m any) error { return status.Errorf(codes.Internal, "a %T is not a fragment", m) }

// transport is a call as [grpc.ServerTransportStream].
type transport struct {
	grpc.ServerStream
	method string
}

func (t transport) Method() string { return t.method }

func (t transport) SetTrailer(md metadata.MD) error {
	t.ServerStream.SetTrailer(md)
	return nil
}

// streamCaller is the caller of a stream.
type streamCaller struct{ *stream }

func (s streamCaller) sendHeader(ctx context.Context, kind string, md metadata.MD) error {
	return statusOfEnd(s.sendFields(ctx, addMetadata(headerFields(kind), md), false))
}

func (s streamCaller) sendData(ctx context.Context, data []byte) error {
	return statusOfEnd(s.send(ctx, data, false))
}

func (s streamCaller) receive(ctx context.Context, before []byte) (data []byte, last bool, err error) {
	data, last, err = s.next(ctx, before)
	if !isEnd(err) {
		err = statusOfEnd(err)
	}
	return data, last, err
}

// Whole implements caller.
func (s streamCaller) Whole() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.recvEnded && len(s.data.chunks) <= 1
}

// end sends the status of a call and closes its stream.
func (s streamCaller) end(call *serverCall, err error) {
	trailer, sent := call.ended()
	if !sent && errors.Is(call.ctx.Err(), context.DeadlineExceeded) {
		s.c.mu.Lock()
		s.charge() // a call whose deadline has passed counts as canceled
		s.c.mu.Unlock()
	}
	if errors.Is(err, ErrNotBegun) && !sent {
		s.close(http2.ErrCodeRefusedStream)
		return
	}
	var fields []hpack.HeaderField
	if !sent {
		fields = headerFields(call.kind)
	}
	failed := s.sendFields(call.ctx, addMetadata(statusFields(fields, convert(err)), trailer), true)
	if errors.Is(failed, errNoRoom) {
		failed = s.sendFields(call.ctx, statusFields(fields, convert(statusOfEnd(failed))), true)
	}
	code := http2.ErrCodeNo
	if failed != nil {
		code = http2.ErrCodeCancel
	}
	s.close(code)
}

// headerFields returns the fields with which an answer begins.
func headerFields(kind string) []hpack.HeaderField {
	return []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: contentTypeKey, Value: kind}}
}
