package controlapi

import (
	"errors"
	"io"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

// RequestLimits bound how many requests to the control API are in progress: of each user, and of all users except root and the daemon's
// user. A subscription to events is one request. The bytes of requests count to the budget of calls.
var RequestLimits = h2proxy.Limits{UserCalls: 12 << 10, Calls: 16 << 10}

// freeRequest is how many bytes of a request are not counted. Most requests are smaller.
const freeRequest = 4 << 10

// boundRequests returns a handler whose requests count to the budgets while they are in progress.
func (c *API) boundRequests(next http.Handler) http.Handler {
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
