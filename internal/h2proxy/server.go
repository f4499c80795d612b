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

// ServerConfig is what a [Server] works with.
type ServerConfig struct {
	// Handle handles a call, a stream of [Fragment]s, and returns its status. It is called by a goroutine for each.
	Handle func(caller grpc.ServerStream) error
	// Budget bounds what waits in memory and the calls.
	Budget *Budget
	// Timeout bounds the time in which a caller says that it speaks HTTP/2, and before that the time of Introduce.
	Timeout time.Duration
	// Introduce, if it is not nil, finds out whose a connection is, before anything is read from it, and returns the one to use. If it
	// returns an error, the connection is closed.
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
	call := &serverCall{stream: st, cancel: cancel, answer: answer{kind: r.kind}}
	call.ctx = grpc.NewContextWithServerTransportStream(ctx, transport{call, r.method})
	st.headers, st.trailers = nil, nil
	st.onEnd = func(error) { cancel() }
	s.mu.Lock()
	s.left++ // the connection is one too, so the server is not done
	s.mu.Unlock()
	go func() {
		defer s.end(nil)
		defer c.budget.end(c.uid)
		err := errNoReturn
		defer func() { call.end(err) }()
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

// answer is what a [grpc.ServerStream] of [Fragment]s sends beside them, and what it has received last.
type answer struct {
	ctx  context.Context //nolint:containedctx // A grpc.ServerStream has one.
	kind string          // the content type
	held []byte          // by the last fragment that was received

	mu              sync.Mutex
	header, trailer metadata.MD
	sent            bool // the header
}

func (a *answer) Context() context.Context { return a.ctx }

func (a *answer) SetHeader(md metadata.MD) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.header = metadata.Join(a.header, md)
	return nil
}

func (a *answer) SetTrailer(md metadata.MD) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trailer = metadata.Join(a.trailer, md)
}

// wasSent reports whether the header was sent.
func (a *answer) wasSent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent
}

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

// serverCall is a [grpc.ServerStream] of [Fragment]s.
type serverCall struct {
	answer

	stream *stream
	cancel func()
}

var _ grpc.ServerStream = (*serverCall)(nil)

// UID returns the user who calls, Budget what bounds the call.
func (c *serverCall) UID() uint32     { return c.stream.uid }
func (c *serverCall) Budget() *Budget { return c.stream.budget }

func (c *serverCall) SendHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return status.Error(codes.Internal, "the header was sent already")
	}
	fields := addMetadata([]hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: contentTypeKey, Value: c.kind}}, c.header)
	if err := c.stream.sendFields(c.ctx, addMetadata(fields, md), false); err != nil {
		return statusOfEnd(err)
	}
	c.sent = true
	return nil
}

func (c *serverCall) SendMsg(m any) error {
	f, ok := m.(*Fragment)
	if !ok {
		return status.Errorf(codes.Internal, "cannot send a %T as a fragment", m)
	}
	if !c.sent { // only this goroutine sends it
		if err := c.SendHeader(nil); err != nil {
			return err
		}
	}
	if err := c.stream.send(c.ctx, f.data, false); err != nil {
		return statusOfEnd(err)
	}
	return nil
}

func (c *serverCall) RecvMsg(m any) (err error) {
	f, ok := m.(*Fragment)
	if !ok {
		return status.Errorf(codes.Internal, "cannot receive fragments into a %T", m)
	}
	f.data, f.last, err = c.stream.next(c.ctx, c.held)
	if c.held = f.data; err != nil && !isEnd(err) {
		return statusOfEnd(err)
	}
	return err
}

// Whole says whether all that the caller sends has come, and is in one fragment at most.
func (c *serverCall) Whole() bool {
	c.stream.c.mu.Lock()
	defer c.stream.c.mu.Unlock()
	return c.stream.recvEnded && len(c.stream.data.chunks) <= 1
}

// end sends the status of a call.
func (c *serverCall) end(err error) {
	defer c.cancel()
	c.mu.Lock()
	header, trailer := c.header, c.trailer
	c.mu.Unlock()
	if c.sent {
		header = nil
	} else if errors.Is(c.ctx.Err(), context.DeadlineExceeded) {
		c.stream.c.mu.Lock()
		c.stream.charge() // a call whose deadline has passed counts as canceled
		c.stream.c.mu.Unlock()
	}
	if errors.Is(err, ErrNotBegun) && !c.sent {
		c.stream.close(http2.ErrCodeRefusedStream)
		return
	}
	failed := c.sendEnd(err, metadata.Join(header, trailer))
	if errors.Is(failed, errNoRoom) {
		failed = c.sendEnd(statusOfEnd(failed), nil)
	}
	code := http2.ErrCodeNo
	if failed != nil {
		code = http2.ErrCodeCancel
	}
	c.stream.close(code)
}

// sendEnd sends a status with the trailers, which are the header too if that was not sent.
func (c *serverCall) sendEnd(err error, md metadata.MD) error {
	var fields []hpack.HeaderField
	if !c.sent {
		fields = []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: contentTypeKey, Value: c.kind}}
	}
	return c.stream.sendFields(c.ctx, addMetadata(statusFields(fields, convert(err)), md), true)
}
