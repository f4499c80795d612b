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

// maxUserLists and maxLists bound the bytes of the answers that are sent at once: to each user, and to all but root and the daemon's user.
// An answer is held whole until its caller has taken it, in one message or the many of StreamPlugins, WatchEvents and WatchFleet.
const maxUserLists, maxLists = 32 << 20, 64 << 20

// freeAnswer is how much of an answer that is one message is not counted: less than a request takes anyway.
const freeAnswer = 1 << 10

// lists counts these answers. A nil *lists bounds nothing.
type lists struct {
	pool    *quota.Pool
	refused prometheus.Counter
	log     *slog.Logger
}

func newLists(self uint32, refused prometheus.Counter, log *slog.Logger) *lists {
	return &lists{quota.New(quota.Limits{User: maxUserLists, Total: maxLists}, limits.Exempt(self)), refused, log}
}

// sending is a request whose answer counts.
type sending struct {
	*quota.Grant

	lists *lists
	uid   uint32
}

type sendingKey struct{}

// handler returns a handler whose answers count until they are sent.
func (l *lists) handler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid := access.CallerOf(r.Context()).UID()
		s := &sending{l.pool.Grant(uid), l, uid}
		defer s.End() // gRPC ends a request before the goroutine that answers it
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sendingKey{}, s)))
	})
}

// countAnswer counts an answer that is one message. That to what was done, and not only read, is never refused.
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

// countList counts an answer to a request. It is an error if there is no room for it.
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

// sent stops counting the answers to a request, because all that counted is sent.
func sent(request context.Context) {
	if s, ok := request.Value(sendingKey{}).(*sending); ok {
		s.Release()
	}
}
