package controlapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

// newForwarder returns what takes the gRPC calls on the control socket that are not for the control API. Each goes to the plugin that its
// metadata name, on this node or in the fleet. Callers need the role [access.CallRole], and the budget bounds what their calls hold.
func newForwarder(g *access.Authorizer, registry proxy.Connector, fleet *node.Node, budget *h2proxy.Budget, log *slog.Logger) http.Handler {
	return proxy.NewServer(context.Background(), func(ctx context.Context, caller grpc.ServerStream) error {
		if err := g.AuthorizeCall(ctx); err != nil {
			return err
		}
		held, release := g.Hold(ctx, access.CallRole)
		defer release()
		md, _ := grpcmetadata.FromIncomingContext(ctx)
		var p plugin.Name
		var unrouted error
		p.Type, p.Name, unrouted = proxy.ParseRoute(md)
		reached := false // a plugin
		err := proxy.Director(func(ctx context.Context, _ string) (conn grpc.ClientConnInterface, err error) {
			if unrouted != nil {
				return nil, unrouted
			}
			if node.IsFleetCall(md) {
				conn, err = fleet.Route(md, p.Type, p.Name)
			} else {
				conn, err = proxy.ConnTo(ctx, registry, p.Type, p.Name)
			}
			reached = err == nil
			return conn, err
		}).Forward(held, caller)
		var call access.Call
		if unrouted == nil {
			method, _ := grpc.MethodFromServerStream(caller)
			call = access.Call{Plugin: p, Fleet: node.IsFleetCall(md), Method: strings.TrimPrefix(method, "/")}
		}
		g.Called(ctx, call, reached, status.Code(err))
		return err
	}, proxy.ServerConfig{Budget: budget, Log: log, UID: func(r *http.Request) uint32 { return access.CallerOf(r.Context()).UID() }})
}
