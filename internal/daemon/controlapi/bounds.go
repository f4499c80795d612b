package controlapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/quota"
)

// RequestLimits are the limits for concurrent requests to the control API: for each user, and for all users except root and the daemon's
// user. A subscription to events is a request that lasts as long as the subscription. The bytes of requests count to the budget of calls.
var RequestLimits = h2proxy.Limits{UserCalls: 12 << 10, Calls: 16 << 10}

// freeRequest is how many bytes of a request are not counted. Most requests are smaller.
const freeRequest = 4 << 10

// boundRequests returns a handler whose requests count to the budgets while they are in progress.
func (c service) boundRequests(next http.Handler) http.Handler {
	if c.Requests == nil {
		return next
	}
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid := access.CallerOf(r.Context()).UID()
		end, err := c.Requests.Begin(uid)
		if err != nil {
			_ = refuse.Write(w, r, asConnect(err))
			return
		}
		defer end()
		held := c.Calls.Hold(uid)
		defer held.Give()
		r.Body = &countedBody{ReadCloser: r.Body, held: held, free: freeRequest}
		next.ServeHTTP(w, r)
	})
}

// countedBody counts the bytes read from a request, which is kept in memory as a whole.
type countedBody struct {
	io.ReadCloser
	held *h2proxy.Held
	free int
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	free := min(n, b.free)
	b.free -= free
	if full := b.held.Take(n - free); full != nil {
		return 0, asConnect(full)
	}
	return n, err
}

// asConnect converts a gRPC status to an error of the control API.
func asConnect(err error) error {
	s := status.Convert(err)
	return connect.NewError(connect.Code(s.Code()), errors.New(s.Message()))
}

// maxUserLists and maxLists are the limits for the bytes of responses that have not been read yet: for each user, and for all users except
// root and the daemon's user. A response is in memory until the client has read it, even if it is a stream of messages, as in
// StreamPlugins, WatchEvents or WatchFleet.
const maxUserLists, maxLists = 32 << 20, 64 << 20

// freeAnswer is how many bytes of a single response are not counted, because the request itself needs more memory.
const freeAnswer = 1 << 10

// lists counts the bytes of responses.
type lists struct {
	pool    *quota.Pool
	refused prometheus.Counter
	log     *slog.Logger
}

func newLists(self uint32, refused prometheus.Counter, log *slog.Logger) *lists {
	return &lists{quota.New(quota.Limits{User: maxUserLists, Total: maxLists}, limits.Exempt(self)), refused, log}
}

// sending is a request whose response counts.
type sending struct {
	*quota.Grant

	lists *lists
	uid   uint32
}

type sendingKey struct{}

// handler returns a handler whose responses count until they are sent.
func (l *lists) handler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid := access.CallerOf(r.Context()).UID()
		s := &sending{l.pool.Grant(uid), l, uid}
		defer s.End() // not Release: with gRPC, the goroutine that answers may still run
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sendingKey{}, s)))
	})
}

// countAnswer counts a response of one message. The response to an operation is never refused, because the operation has been done.
func countAnswer(ctx context.Context, procedure string, answer any) error {
	m, ok := answer.(proto.Message)
	if !ok {
		return nil
	}
	bytes := max(proto.Size(m)-freeAnswer, 0)
	if access.RoleFor(procedure) > access.Read {
		if s, ok := ctx.Value(sendingKey{}).(*sending); ok {
			s.Add(bytes)
		}
		return nil
	}
	return countList(ctx, bytes)
}

// countList counts bytes of a response, and returns an error if they exceed a bound.
func countList(request context.Context, bytes int) error {
	s, ok := request.Value(sendingKey{}).(*sending)
	if !ok {
		return nil
	}
	refusal := s.Take(bytes)
	if refusal == nil {
		return nil
	}
	s.lists.refused.Inc()
	if refusal.First {
		s.lists.log.Warn("an answer of the control API is refused: its callers have not read earlier ones", "uid", s.uid, "bytes", bytes,
			"mostOfUser", maxUserLists, "ofAll", refusal.OfAll, "mostOfAll", maxLists)
	}
	return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf(
		"the answer has %d bytes, and unread ones may have %d for one user and %d for all; read the other answers, ask for less, or try again",
		bytes, maxUserLists, maxLists))
}

// sent stops counting for a request. It must be called when everything that was counted has been sent.
func sent(request context.Context) {
	if s, ok := request.Value(sendingKey{}).(*sending); ok {
		s.Release()
	}
}

// maxFilter is the maximum length of a list in a request, and maxDevices that of a list of devices. An empty value takes two bytes in a
// request but sixteen in memory, and each value is compared with everything that the request may select.
const maxFilter, maxDevices = 256, 16 << 10

// bounds is a [connect.Interceptor] that refuses requests with lists that are too long, and single responses for which there is no room.
// Streams call countList themselves.
type bounds struct{}

// WrapUnary implements [connect.Interceptor].
func (bounds) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		if err := checkLists(request.Any()); err != nil {
			return nil, err
		}
		response, err := next(ctx, request)
		if err == nil {
			err = countAnswer(ctx, request.Spec().Procedure, response.Any())
		}
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (bounds) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, stream connect.StreamingHandlerConn) error {
		return next(ctx, filteredStream{stream})
	}
}

// WrapStreamingClient implements [connect.Interceptor]; the daemon does not call its own API.
func (bounds) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// filteredStream checks the lists of the requests on a stream.
type filteredStream struct{ connect.StreamingHandlerConn }

func (s filteredStream) Receive(request any) error {
	if err := s.StreamingHandlerConn.Receive(request); err != nil {
		return err
	}
	return checkLists(request)
}

// checkLists returns an error if a list of a request is too long.
func checkLists(request any) error {
	if m, ok := request.(proto.Message); ok {
		return checkFields("", m.ProtoReflect())
	}
	return nil
}

func checkFields(within string, m protoreflect.Message) (err error) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name, count, most := within+string(field.Name()), 0, maxFilter
		switch {
		case field.IsMap():
			count = value.Map().Len()
		case field.IsList():
			count = value.List().Len()
		case field.Message() != nil:
			err = checkFields(name+".", value.Message())
		}
		if field.Name() == "devices" {
			most = maxDevices
		}
		if count > most {
			err = connect.NewError(connect.CodeInvalidArgument,
				fmt.Errorf("the field %s has %d values, and may have %d: ask for less, or for all", name, count, most))
		}
		return err == nil
	})
	return err
}
