package controlapi

import (
	"log/slog"
	"net"
	"net/http"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

// maxRequest bounds one request in bytes. None that is meant seriously comes near.
const maxRequest = 64 << 10

// serve starts the server of the control API and returns. The caller stops the server. If it fails before that, failed is called and
// stop returns the error.
func serve(listener net.Listener, g *access.Authorizer, c *service, failed func(), log *slog.Logger) *server.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // what gRPC clients speak on a socket without TLS
	h := &http.Server{Handler: newControlHandler(g, c), Protocols: protocols, ConnContext: g.ConnContext}
	h2proxy.BoundHTTP(h)
	return server.Start("the control API", listener, h, failed, log)
}

// newControlHandler returns what answers the control API, and calls of plugins at its socket.
func newControlHandler(g *access.Authorizer, c *service) http.Handler {
	mux := http.NewServeMux()
	guarded := []connect.HandlerOption{
		connect.WithRequestGate(g.Gate), connect.WithInterceptors(g.Interceptor(), bounds{}), connect.WithReadMaxBytes(maxRequest),
		connect.WithCompression("gzip", nil, nil), // what is compressed is far larger than what counts, and the caller is on this machine
	}
	own := func(path string, service http.Handler) {
		mux.Handle(path, c.requests.handler(c.lists.handler(service)))
	}
	own(patchbayv1connect.NewControlServiceHandler(c, guarded...))
	own(patchbayv1connect.NewFleetServiceHandler(fleetService{c.config.Node}, guarded...))
	own(patchbayv1connect.NewDeviceServiceHandler(deviceService{c.config.Handlers},
		append(guarded, connect.WithReadMaxBytes(maxDeviceRequest))...))
	mux.Handle(reflectionPath, newReflection(g, c.requests, c.lists, c.calls))
	if c.calls != nil {
		mux.Handle("/", c.calls)
	}
	return mux
}
