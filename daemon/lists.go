package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-dev/patchbay/internal/discover/share"
)

// maxUserLists and maxLists bound the bytes of the lists of plugins and of past events that are sent at once: to each user, and to all
// but root and the daemon's user. A list is held whole until its caller has taken it, in one message of ListPlugins or the many of
// StreamPlugins and WatchEvents.
const maxUserLists, maxLists = 32 << 20, 64 << 20

// lists counts these answers. A nil *lists bounds nothing.
type lists struct {
	free    func(uid uint32) bool
	refused prometheus.Counter
	log     *slog.Logger

	mu   sync.Mutex
	pool *share.Pool
}

func newLists(self uint32, refused prometheus.Counter, log *slog.Logger) *lists {
	free := func(uid uint32) bool { return uid == 0 || uid == self }
	return &lists{free: free, refused: refused, log: log, pool: share.New(maxUserLists, maxLists, nil)}
}

// sending is a request whose answer may count. It is used by the goroutine of the request.
type sending struct {
	lists *lists
	uid   uint32
	bytes int
}

type sendingKey struct{}

// handler returns a handler whose answers count until they are sent.
func (l *lists) handler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := &sending{lists: l, uid: callerIn(r.Context()).uid()}
		defer s.end()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sendingKey{}, s)))
	})
}

// countList has the answer to a request count. It is an error if there is too much.
func countList(request context.Context, bytes int) error {
	s, ok := request.Value(sendingKey{}).(*sending)
	if !ok || s.lists.free(s.uid) {
		return nil
	}
	l := s.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	room, first := l.pool.Take(s.uid, bytes)
	if room {
		s.bytes = bytes
		return nil
	}
	l.refused.Inc()
	if first {
		l.log.Warn("a list of plugins or events is refused: its callers have not read earlier ones", "uid", s.uid, "bytes", bytes,
			"mostOfUser", maxUserLists, "ofAll", l.pool.Sum(), "mostOfAll", maxLists)
	}
	return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf(
		"the list has %d bytes, and unread lists may have %d for one user and %d for all; read the other lists, ask for less, or try again",
		bytes, maxUserLists, maxLists))
}

// sent has the answer to a request not count any more, because all of it that counted is sent.
func sent(request context.Context) {
	if s, ok := request.Value(sendingKey{}).(*sending); ok {
		s.end()
	}
}

func (s *sending) end() {
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	s.lists.pool.Give(s.uid, s.bytes)
	s.bytes = 0
}
