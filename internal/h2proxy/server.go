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

// Handler handles a call, a stream of [Fragment]s, and returns its status. Each call has its own goroutine.
type Handler func(caller grpc.ServerStream) error

// ServerConfig configures a [Server].
type ServerConfig struct {
	Handle Handler
	// Budget bounds the data in memory and the number of calls.
	Budget *Budget
	// Timeout bounds how long Introduce may take, and then how long the caller may take to send its HTTP/2 preface and settings.
	Timeout time.Duration
	// Introduce, if it is not nil, identifies the caller of a connection before anything is read from it, and returns the connection to
	// use, for example after a TLS handshake. If it returns an error, the connection is closed. It is a function, like
	// tls.Config.GetConfigForClient, because the user of this package authenticates.
	Introduce func(ctx context.Context, nc net.Conn) (Introduced, error)
	// Streams is announced as SETTINGS_MAX_CONCURRENT_STREAMS; zero announces nothing. It is not enforced: the budget bounds the calls.
	Streams uint32
	// Age is how long a connection accepts new calls; zero for no limit.
	Age time.Duration
	// Silence is the time without a frame after which the caller is pinged; zero for never. If nothing arrives within Answer, the
	// connection is closed.
	Silence, Answer time.Duration
}

// Server accepts calls. Introduce determines the user of a connection; without it, the connection's method UID does, if it has one. A
// Server is safe for concurrent use.
type Server struct {
	config ServerConfig

	mu        sync.Mutex
	listeners []net.Listener
	conns     map[net.Conn]bool // each a *conn, or a connection whose caller is not known yet; nil if empty: a host has many idle servers
	calls     int
	draining  bool
	done      chan struct{} // closed when the server is draining and has no connections and no calls
}

// NewServer returns a server.
func NewServer(config ServerConfig) *Server {
	return &Server{config: config, done: make(chan struct{})}
}

// Serve accepts connections until the listener fails, or until Drain is called, which is not an error. It closes the listener.
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
			s.accept(nc)
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
		// Too many open files, for example.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		sleep(pause, s.done)
	}
}

// endCall uncounts a call.
func (s *Server) endCall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.closeDone()
}

// closeDone closes done if the server is draining and nothing is left; mu is held.
func (s *Server) closeDone() {
	if s.draining && len(s.conns) == 0 && s.calls == 0 && !isClosed(s.done) {
		close(s.done)
	}
}

// Drain stops accepting calls and returns when all calls have ended; Stop cancels them.
func (s *Server) Drain() {
	s.mu.Lock()
	s.draining = true
	for _, l := range s.listeners {
		_ = l.Close()
	}
	conns := slices.Collect(maps.Keys(s.conns))
	s.closeDone()
	s.mu.Unlock()
	for _, nc := range conns {
		if c, ok := nc.(*conn); ok {
			c.drain()
		} else {
			_ = nc.Close() // its caller is not known, so it has no calls
		}
	}
	silent := time.AfterFunc(silentTime, func() {
		for _, nc := range conns {
			if c, ok := nc.(*conn); ok {
				c.endDrain()
			}
		}
	})
	defer silent.Stop()
	<-s.done
}

// Stop closes all connections of a draining server, which cancels the calls.
func (s *Server) Stop() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, nc := range conns {
		if c, ok := nc.(*conn); ok {
			c.fail(errClosed)
		}
	}
}

// opened begins the call of a new stream, or refuses it. The parent of the call's context is from. st.c.mu is held.
func (s *Server) opened(from context.Context, f *http2.MetaHeadersFrame, st *stream) {
	c := st.c
	if f.Truncated {
		st.answer(http.StatusOK, status.Newf(codes.ResourceExhausted, "the metadata of the call have more than %d bytes", MaxMetadata))
		return
	}
	r, err := parseRequest(f.Fields)
	if wrong, ok := errors.AsType[*malformed](err); ok {
		if wrong.status == nil {
			st.refuse(http2.ErrCodeProtocol, &resetError{http2.ErrCodeProtocol})
		} else {
			st.answer(wrong.httpStatus, wrong.status)
		}
		return
	}
	release, err := c.budget.Begin(c.uid)
	if err != nil {
		st.answer(http.StatusOK, status.Convert(err))
		return
	}
	if st.onHeaders(f); st.err != nil {
		release()
		return
	}
	ctx, cancel := r.context(from)
	to := streamCaller{st}
	call := &serverCall{caller: to, kind: r.kind, uid: st.uid, budget: st.budget}
	call.ctx = grpc.NewContextWithServerTransportStream(ctx, transport{call, r.method})
	st.headers, st.trailers = nil, nil
	st.onEnd = cancel
	s.mu.Lock()
	s.calls++ // done is not closed yet, because the connection counts too
	s.mu.Unlock()
	go func() {
		defer s.endCall()
		defer release()
		defer cancel()
		err := errNoReturn
		defer func() { to.end(call, err) }()
		err = s.config.Handle(call)
	}()
}

// answer ends a stream that does not become a call, with an HTTP status and a gRPC status; c.mu is held.
func (s *stream) answer(httpStatus int, st *status.Status) {
	s.c.writeFields(s.id, statusFields([]hpack.HeaderField{
		{Name: ":status", Value: strconv.Itoa(httpStatus)}, {Name: contentTypeKey, Value: contentType},
	}, st), true)
	s.answered, s.sentEnd = true, true
	s.c.flushAnswer()
	if !s.recvEnded {
		s.reset(http2.ErrCodeNo, &resetError{http2.ErrCodeNo})
	}
	s.remove()
}

// serverCall is a call of a [Server] or an [HTTPHandler] as a [grpc.ServerStream] of [Fragment]s. One goroutine may receive while another
// sends.
type serverCall struct {
	caller

	ctx    context.Context //nolint:containedctx // A grpc.ServerStream has one.
	kind   string          // the content type
	uid    uint32
	budget *Budget
	held   []byte // the buffer of the last received fragment

	mu              sync.Mutex
	header, trailer metadata.MD
	sent            bool // the header was sent
}

// caller sends to and receives from the other end of a call. Its errors are io.EOF or gRPC statuses.
type caller interface {
	sendHeader(ctx context.Context, kind string, md metadata.MD) error
	sendData(ctx context.Context, data []byte) error
	// receive returns data, and whether it is the last. The buffer before, which it returned last, may be reused.
	receive(ctx context.Context, before []byte) (data []byte, last bool, err error)
	// Whole reports whether everything that the caller sends has arrived, in at most one fragment. False may mean unknown.
	Whole() bool
}

// UID and Budget return the user of the call and the budget that counts it.
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

// ended returns the trailer, which includes the header if that was not sent, and whether it was.
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
	if !c.sent { // without mu: only the goroutine that sends sets it
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

// transport makes a call a [grpc.ServerTransportStream], for functions such as [grpc.SetHeader].
type transport struct {
	grpc.ServerStream
	method string
}

func (t transport) Method() string { return t.method }

func (t transport) SetTrailer(md metadata.MD) error {
	t.ServerStream.SetTrailer(md)
	return nil
}

// streamCaller is the caller of a [Server].
type streamCaller struct{ *stream }

func (s streamCaller) sendHeader(ctx context.Context, kind string, md metadata.MD) error {
	return statusOfEnd(s.sendFields(ctx, addMetadata(headerFields(kind), md), false))
}

func (s streamCaller) sendData(ctx context.Context, data []byte) error {
	return statusOfEnd(s.send(ctx, data, false))
}

func (s streamCaller) receive(ctx context.Context, before []byte) (data []byte, last bool, err error) {
	data, last, err = s.next(ctx, before)
	if !errors.Is(err, io.EOF) {
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
		s.charge() // a call whose deadline has passed counts as canceled by its caller
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

// headerFields returns the first fields of a response.
func headerFields(kind string) []hpack.HeaderField {
	return []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: contentTypeKey, Value: kind}}
}
