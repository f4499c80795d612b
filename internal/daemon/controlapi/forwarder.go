package controlapi

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

// newForwarder returns a handler that forwards each gRPC call to the plugin, on this node or in the fleet, that the metadata of the call
// name. Callers need the role [access.CallRole].
func (c service) newForwarder() http.Handler {
	g := c.Authorizer
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
		reached := false // whether there was a plugin to call
		err := proxy.Director(func(ctx context.Context, _ string) (conn grpc.ClientConnInterface, err error) {
			if unrouted != nil {
				return nil, unrouted
			}
			if node.IsFleetCall(md) {
				conn, err = c.Node.Route(md, p.Type, p.Name)
			} else {
				conn, err = proxy.ConnTo(ctx, c.Connector, p.Type, p.Name)
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
	}, proxy.ServerConfig{Budget: c.Calls, Log: c.Logger, UID: func(r *http.Request) uint32 { return access.CallerOf(r.Context()).UID() }})
}
