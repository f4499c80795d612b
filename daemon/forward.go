package daemon

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/proxy"
)

// forwarder takes the gRPC calls on the control socket that are not for the control API and forwards each to the plugin that its metadata
// name, see [proxy.Route], on this node or in the fleet. Callers need the role that [callRole] says.
type forwarder struct{ grpc *grpc.Server }

func newForwarder(g *guard, registry connector, calls *fleetCalls) *forwarder {
	forward := proxy.Handler(func(ctx context.Context, _ string) (grpc.ClientConnInterface, error) {
		md, _ := grpcmetadata.FromIncomingContext(ctx)
		ptype, name, err := proxy.ParseRoute(md)
		if err != nil {
			return nil, status.Error(codes.Unimplemented, err.Error())
		}
		if isFleetCall(md) {
			conn, err := calls.direct(md, ptype, name)
			return arrived(ctx, conn, err)
		}
		conn, err := connTo(ctx, registry, ptype, name)
		return arrived(ctx, conn, err)
	})
	return &forwarder{proxy.NewServer(func(srv any, caller grpc.ServerStream) error {
		request, ok := caller.Context().Value(requestKey{}).(context.Context)
		if !ok {
			return status.Error(codes.Internal, "the call came over no request")
		}
		if err := g.admit(request, actionCall, callRole); err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
		held, release := g.hold(request, callRole)
		defer release()
		reached := false // a plugin
		err := endWith(held, caller, func(caller grpc.ServerStream) error {
			return forward(srv, streamWithContext{caller, context.WithValue(caller.Context(), reachedKey{}, &reached)})
		})
		if lost := context.Cause(held); isDenial(lost) && err != nil {
			err = status.Error(codes.PermissionDenied, lost.Error())
		}
		plugin, method := calledIn(caller)
		g.audit.called(callerIn(request), plugin, method, reached, status.Code(err))
		return err
	})}
}

// arrived notes that a call has found its plugin.
func arrived(ctx context.Context, conn grpc.ClientConnInterface, err error) (grpc.ClientConnInterface, error) {
	if reached, ok := ctx.Value(reachedKey{}).(*bool); ok && err == nil {
		*reached = true
	}
	return conn, err
}

// calledIn returns what a call calls, for people.
func calledIn(caller grpc.ServerStream) (plugin, method string) {
	md, _ := grpcmetadata.FromIncomingContext(caller.Context())
	ptype, name, err := proxy.ParseRoute(md)
	if err != nil {
		return "a plugin", "that it does not name"
	}
	method, _ = grpc.MethodFromServerStream(caller)
	where := ""
	if isFleetCall(md) {
		where = " in the fleet"
	}
	return short(ptype) + "/" + short(name) + where, short(strings.TrimPrefix(method, "/"))
}

// connector is the part of the registry that gives connections.
type connector interface {
	Conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error)
}

// connTo returns a connection to a plugin whose calls go to the instance that is current when they begin.
func connTo(ctx context.Context, registry connector, ptype, name string) (grpc.ClientConnInterface, error) {
	called := "plugin " + ptype + "/" + name
	conn, err := registry.Conn(ctx, ptype, name)
	if err != nil {
		return nil, proxy.CannotCall(called, err)
	}
	return proxy.Named(conn, called), nil
}

// reachedKey leads to the bool that says whether a call has reached a plugin. The director writes it before the call is forwarded.
type reachedKey struct{}

// requestKey leads to the context of the HTTP request of a call.
type requestKey struct{}

// ServeHTTP implements [http.Handler].
func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 2 || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		http.NotFound(w, r)
		return
	}
	// A call whose context has ended is cut off without a status. Of those that end because the daemon does, the handler knows, and says why.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	defer context.AfterFunc(r.Context(), func() {
		if !errors.Is(context.Cause(r.Context()), errStopping) {
			cancel()
		}
	})()
	f.grpc.ServeHTTP(w, r.WithContext(context.WithValue(ctx, requestKey{}, r.Context())))
}

// endWith runs a handler whose call ends with end too, and for the same cause.
func endWith(end context.Context, caller grpc.ServerStream, handle func(grpc.ServerStream) error) error {
	ctx, cancel := context.WithCancelCause(caller.Context())
	defer cancel(nil)
	defer context.AfterFunc(end, func() { cancel(context.Cause(end)) })()
	return handle(streamWithContext{caller, ctx})
}

// streamWithContext is a stream with another context, one made from its own.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // A stream has a context.
}

func (s streamWithContext) Context() context.Context { return s.ctx }
