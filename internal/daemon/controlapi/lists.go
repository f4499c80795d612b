package controlapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/quota"
)

// maxUserLists and maxLists bound the bytes of the responses that are being sent: to each user, and to all users except root and the
// daemon's user. A response is in memory until the client has read it all, whether it is one message or, as with StreamPlugins, WatchEvents
// and WatchFleet, many.
const maxUserLists, maxLists = 32 << 20, 64 << 20

// freeAnswer is how many bytes of a single response are not counted. A request needs more memory than that anyway.
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

// sent ends the counting for a request. Call it when everything that was counted is sent.
func sent(request context.Context) {
	if s, ok := request.Value(sendingKey{}).(*sending); ok {
		s.Release()
	}
}
