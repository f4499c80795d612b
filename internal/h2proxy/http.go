package h2proxy

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// HTTPHandler handles the calls among the requests of an HTTP server that serves other things too. The windows for what the callers send
// are those of that server, see [BoundHTTP]: what a call has not taken holds up all others on the same connection.
type HTTPHandler struct {
	// Handle handles a call, a stream of [Fragment]s, and returns its status.
	Handle func(caller grpc.ServerStream) error
	// Budget bounds the calls, and what waits in memory on their way to the plugin and back.
	Budget *Budget
	// UID returns the user who makes a request.
	UID func(r *http.Request) uint32
}

// BoundHTTP bounds what the callers of an HTTP server may have waiting in memory: each connection as much as HTTP/2 allows it at least, and
// as much of headers that have not come whole. How many connections there are is bounded where they are accepted.
func BoundHTTP(s *http.Server) {
	if s.HTTP2 == nil {
		s.HTTP2 = new(http.HTTP2Config)
	}
	s.MaxHeaderBytes = maxHTTPHeader
	s.HTTP2.MaxReceiveBufferPerConnection, s.HTTP2.MaxReceiveBufferPerStream = minHTTPWindow, minHTTPWindow
	s.HTTP2.MaxReadFrameSize = maxFrame
}

// minHTTPWindow is the smallest window that an [http.Server] can be given, maxHTTPHeader bounds the headers of a request there.
const minHTTPWindow, maxHTTPHeader = 64 << 10, 64 << 10

// ServeHTTP implements [http.Handler]. A request that is no gRPC call gets "not found".
func (h HTTPHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := r.Header.Get(contentTypeKey)
	if r.ProtoMajor != 2 || r.Method != http.MethodPost || !isGRPC(kind) {
		http.NotFound(w, r)
		return
	}
	call := &httpCall{w: w, r: r, uid: h.UID(r), budget: h.Budget, answer: answer{kind: kind}}
	fields := fieldsOf(r)
	asked, err := parseRequest(fields)
	if wrong, ok := errors.AsType[*malformed](err); ok {
		call.end(wrong.status.Err())
		return
	}
	size := sizeOf(fields)
	if size <= freeMetadata {
		size = 0
	}
	end, err := h.Budget.Begin(call.uid)
	if err != nil {
		call.end(err)
		return
	}
	defer end()
	held := h.Budget.Hold(call.uid)
	defer held.Give()
	if err := held.Take(size); err != nil {
		call.end(err)
		return
	}
	ctx, cancel := asked.context(grpcpeer.NewContext(r.Context(), &grpcpeer.Peer{Addr: httpAddr(r.RemoteAddr)}))
	defer cancel()
	call.ctx = grpc.NewContextWithServerTransportStream(ctx, transport{call, r.URL.Path})
	err = errNoReturn
	defer func() {
		if ctx.Err() != nil && !call.wasSent() {
			if brake, ok := ctx.Value(brakeKey{}).(*Brake); ok {
				brake.pause(h.Budget.cancel(&brake.cancels, call.uid, 1))
			}
		}
		call.end(err)
	}()
	err = h.Handle(call)
}

// fieldsOf returns the headers of a request as HTTP/2 has them.
func fieldsOf(r *http.Request) []hpack.HeaderField {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: r.Method}, {Name: ":path", Value: r.URL.Path}, {Name: ":authority", Value: r.Host},
	}
	for name, values := range r.Header {
		for _, value := range values {
			fields = append(fields, hpack.HeaderField{Name: strings.ToLower(name), Value: value})
		}
	}
	return fields
}

type httpAddr string

func (httpAddr) Network() string  { return "tcp" }
func (a httpAddr) String() string { return string(a) }

// httpCall is a [grpc.ServerStream] of [Fragment]s. One goroutine receives and one sends.
type httpCall struct {
	answer

	w      http.ResponseWriter
	r      *http.Request
	uid    uint32
	budget *Budget
}

var _ grpc.ServerStream = (*httpCall)(nil)

// UID returns the user who calls, Budget what bounds the call.
func (c *httpCall) UID() uint32     { return c.uid }
func (c *httpCall) Budget() *Budget { return c.budget }

// Whole says whether all that the caller sends has come, which is not known.
func (c *httpCall) Whole() bool { return false }

func (c *httpCall) SendHeader(md metadata.MD) error {
	c.mu.Lock()
	header, sent := metadata.Join(c.header, md), c.sent
	c.sent = true
	c.mu.Unlock()
	if sent {
		return status.Error(codes.Internal, "the header was sent already")
	}
	h := c.w.Header()
	h["Date"] = nil // which an HTTP server adds, and no plugin said
	h.Set(contentTypeKey, c.kind)
	for _, f := range addMetadata(nil, header) {
		h.Add(f.Name, f.Value)
	}
	c.w.WriteHeader(http.StatusOK)
	return c.flush()
}

func (c *httpCall) flush() error {
	if err := http.NewResponseController(c.w).Flush(); err != nil {
		return c.lost(err)
	}
	return nil
}

// lost is the status of a call whose caller cannot be reached.
func (c *httpCall) lost(err error) error {
	if ended := c.ctx.Err(); ended != nil {
		return status.FromContextError(ended).Err()
	}
	return status.Error(codes.Canceled, "the call was lost with its caller: "+err.Error())
}

func (c *httpCall) SendMsg(m any) error {
	f, ok := m.(*Fragment)
	if !ok {
		return status.Errorf(codes.Internal, "cannot send a %T as a fragment", m)
	}
	if !c.wasSent() {
		if err := c.SendHeader(nil); err != nil {
			return err
		}
	}
	if _, err := c.w.Write(f.data); err != nil {
		return c.lost(err)
	}
	return c.flush()
}

func (c *httpCall) RecvMsg(m any) error {
	f, ok := m.(*Fragment)
	if !ok {
		return status.Errorf(codes.Internal, "cannot receive fragments into a %T", m)
	}
	if c.held == nil {
		c.held = takeFrom(chunks)[:chunkSize]
	}
	n, err := 0, error(nil)
	for n == 0 && err == nil {
		n, err = c.r.Body.Read(c.held)
	}
	if f.data, f.last = c.held[:n], false; n > 0 {
		return nil // an error comes again
	}
	giveBuffer(c.held)
	f.data, c.held = nil, nil
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return c.lost(err)
}

// end sends the status of a call.
func (c *httpCall) end(err error) {
	c.mu.Lock()
	sent, trailer := c.sent, c.trailer
	c.mu.Unlock()
	if !sent && c.SendHeader(nil) != nil {
		return // nobody is there to be told
	}
	for _, f := range addMetadata(statusFields(nil, convert(err)), trailer) {
		c.w.Header().Add(http.TrailerPrefix+f.Name, f.Value)
	}
}
