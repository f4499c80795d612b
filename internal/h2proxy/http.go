package h2proxy

import (
	"context"
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

// HTTPHandler handles gRPC calls of an HTTP server that also serves other requests. That server's flow control applies, see [BoundHTTP]:
// unread data of one call blocks the other calls on the same connection.
type HTTPHandler struct {
	Handle Handler
	// Budget bounds the calls, and the data in memory that is not in the HTTP server.
	Budget *Budget
	// UID returns the user of a request. It is a function because the HTTP server authenticates.
	UID func(r *http.Request) uint32
}

// BoundHTTP bounds the memory of each connection of an HTTP server: received data to the minimum of HTTP/2, and headers to 64 KiB. The
// listener must bound the number of connections.
func BoundHTTP(s *http.Server) {
	if s.HTTP2 == nil {
		s.HTTP2 = new(http.HTTP2Config)
	}
	s.MaxHeaderBytes = maxHTTPHeader
	s.HTTP2.MaxReceiveBufferPerConnection, s.HTTP2.MaxReceiveBufferPerStream = minHTTPWindow, minHTTPWindow
	s.HTTP2.MaxReadFrameSize = maxFrame
}

// minHTTPWindow is the smallest window of an [http.Server]; maxHTTPHeader is the limit for the headers of a request.
const minHTTPWindow, maxHTTPHeader = 64 << 10, 64 << 10

// ServeHTTP implements [http.Handler]. It answers a request that is not a gRPC call with "not found".
func (h HTTPHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := r.Header.Get(contentTypeKey)
	if r.ProtoMajor != 2 || r.Method != http.MethodPost || !isGRPC(kind) {
		http.NotFound(w, r)
		return
	}
	from := httpCaller{w, r}
	call := &serverCall{caller: from, kind: kind, uid: h.UID(r), budget: h.Budget}
	fields := fieldsOf(r)
	asked, err := parseRequest(fields)
	if wrong, ok := errors.AsType[*malformed](err); ok {
		from.end(call, wrong.status.Err())
		return
	}
	end, err := h.Budget.Begin(call.uid)
	if err != nil {
		from.end(call, err)
		return
	}
	defer end()
	held := h.Budget.Hold(call.uid)
	defer held.Give()
	if size := sizeOf(fields); size > freeMetadata {
		err = held.Take(size)
	}
	if err != nil {
		from.end(call, err)
		return
	}
	ctx, cancel := asked.context(grpcpeer.NewContext(r.Context(), &grpcpeer.Peer{Addr: httpAddr(r.RemoteAddr)}))
	defer cancel()
	call.ctx = grpc.NewContextWithServerTransportStream(ctx, transport{call, r.URL.Path})
	if brake, ok := ctx.Value(brakeKey{}).(*Brake); ok {
		// Counts the cancellation when it arrives. On a busy machine, the end of the handler is too late.
		defer context.AfterFunc(ctx, func() {
			if _, sent := call.ended(); !sent {
				brake.pause(h.Budget.cancel(&brake.cancels, call.uid, 1))
			}
		})()
		// Does not count calls whose deadline has passed: their handlers may wait for a window update, which must be read.
		stop := context.AfterFunc(r.Context(), func() { brake.addUnfinished(1) })
		defer func() {
			if !stop() {
				brake.addUnfinished(-1)
			}
		}()
	}
	err = errNoReturn
	defer func() { from.end(call, err) }()
	err = h.Handle(call)
}

// fieldsOf returns the headers of a request as HTTP/2 header fields.
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

// httpCaller is the caller of a request.
type httpCaller struct {
	w http.ResponseWriter
	r *http.Request
}

// Whole implements caller. An HTTP server does not know it.
func (httpCaller) Whole() bool { return false }

func (c httpCaller) sendHeader(_ context.Context, kind string, md metadata.MD) error {
	h := c.w.Header()
	h["Date"] = nil // keeps the HTTP server from adding it
	h.Set(contentTypeKey, kind)
	for _, f := range addMetadata(nil, md) {
		h.Add(f.Name, f.Value)
	}
	c.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(c.w).Flush() // if the caller has disconnected, the call ends
	return nil
}

func (c httpCaller) sendData(ctx context.Context, data []byte) error {
	_, err := c.w.Write(data)
	if err == nil {
		err = http.NewResponseController(c.w).Flush()
	}
	if err != nil {
		return lostCaller(ctx, err)
	}
	return nil
}

// lostCaller returns the status of a call whose caller has disconnected.
func lostCaller(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return status.FromContextError(ended).Err()
	}
	return status.Error(codes.Canceled, "the call was lost with its caller: "+err.Error())
}

func (c httpCaller) receive(ctx context.Context, buffer []byte) (data []byte, last bool, err error) {
	if buffer == nil {
		buffer = takeFrom(chunks)
	}
	buffer = buffer[:chunkSize]
	n := 0
	for n == 0 && err == nil {
		n, err = c.r.Body.Read(buffer)
	}
	switch {
	case n > 0:
		return buffer[:n], false, nil // the next call returns the error again
	case !errors.Is(err, io.EOF):
		err = lostCaller(ctx, err)
	}
	giveBuffer(buffer)
	return nil, false, err
}

// end sends the status and the trailer of a call.
func (c httpCaller) end(call *serverCall, err error) {
	_ = call.SendHeader(nil) // fails if it was sent
	trailer, _ := call.ended()
	for _, f := range addMetadata(statusFields(nil, convert(err)), trailer) {
		c.w.Header().Add(http.TrailerPrefix+f.Name, f.Value)
	}
}
