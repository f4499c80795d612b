package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/patchbay-dev/patchbay/internal/quota"
)

// maxUserLists and maxLists bound the bytes of the answers that are sent at once: to each user, and to all but root and the daemon's user.
// An answer is held whole until its caller has taken it, in one message or the many of StreamPlugins, WatchEvents and WatchFleet.
const maxUserLists, maxLists = 32 << 20, 64 << 20

// freeAnswer is how much of an answer that is one message is not counted: less than a request takes anyway.
const freeAnswer = 1 << 10

// lists counts these answers. A nil *lists bounds nothing.
type lists struct {
	free    func(uid uint32) bool
	refused prometheus.Counter
	log     *slog.Logger

	mu   sync.Mutex
	pool *quota.Pool
}

func newLists(self uint32, refused prometheus.Counter, log *slog.Logger) *lists {
	free := func(uid uint32) bool { return uid == 0 || uid == self }
	return &lists{free: free, refused: refused, log: log, pool: quota.New(maxUserLists, maxLists, nil)}
}

// sending is a request whose answer may count.
type sending struct {
	lists *lists
	uid   uint32

	// The rest is guarded by lists.mu.
	bytes int
	over  bool // gRPC ends a request before the goroutine that answers it
}

type sendingKey struct{}

// handler returns a handler whose answers count until they are sent.
func (l *lists) handler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := &sending{lists: l, uid: callerIn(r.Context()).uid()}
		defer s.end(true)
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
	if roleFor(procedure) > roleRead {
		addList(ctx, bytes)
		return nil
	}
	return countList(ctx, bytes)
}

// counted returns the request whose answer counts; nil if it does not.
func counted(request context.Context) *sending {
	s, ok := request.Value(sendingKey{}).(*sending)
	if !ok || s.lists.free(s.uid) {
		return nil
	}
	return s
}

// addList has the answer to a request count, whatever there is.
func addList(request context.Context, bytes int) {
	if s := counted(request); s != nil {
		s.lists.mu.Lock()
		defer s.lists.mu.Unlock()
		s.lists.pool.Add(s.uid, bytes)
		s.bytes += bytes
	}
}

// countList has the answer to a request count. It is an error if there is too much.
func countList(request context.Context, bytes int) error {
	s := counted(request)
	if s == nil || bytes == 0 {
		return nil
	}
	l := s.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.over {
		return nil // nobody reads it
	}
	room, first := l.pool.Take(s.uid, bytes)
	if room {
		s.bytes += bytes
		return nil
	}
	l.refused.Inc()
	if first {
		l.log.Warn("an answer of the control API is refused: its callers have not read earlier ones", "uid", s.uid, "bytes", bytes,
			"mostOfUser", maxUserLists, "ofAll", l.pool.Sum(), "mostOfAll", maxLists)
	}
	return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf(
		"the answer has %d bytes, and unread ones may have %d for one user and %d for all; read the other answers, ask for less, or try again",
		bytes, maxUserLists, maxLists))
}

// sent has the answer to a request not count any more, because all of it that counted is sent.
func sent(request context.Context) {
	if s, ok := request.Value(sendingKey{}).(*sending); ok {
		s.end(false)
	}
}

// end gives back what counts, and with over all that will.
func (s *sending) end(over bool) {
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	s.over = s.over || over
	s.lists.pool.Give(s.uid, s.bytes)
	s.bytes = 0
}
