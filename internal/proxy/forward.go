package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

// Director chooses the connection for a call; method is its full name, for example "/csi.v1.Identity/Probe". The call's metadata is
// the incoming metadata of ctx, which is done when the call ends. A director may block until then. The caller receives its error: a gRPC
// status unchanged, the error of a context with its code, any other error with codes.Unavailable.
//
// The connection is one of a dynamicplugins.Store or of a nodecall.Dialer, whose streams take fragments of messages. Calls to any other,
// for example a [grpc.ClientConn], fail with codes.Internal.
//
// The errors of the proxy name a connection that has a String method, as [Named] returns it. A director returns [CallError]
// for a plugin that it cannot call.
type Director func(ctx context.Context, method string) (grpc.ClientConnInterface, error)

// Forward forwards one call of a [Server] to the connection that the director chooses. It is a [Handler].
//
// The caller receives the status of the plugin. If there is none, because the call could not be made or was lost with its connection, the
// status has codes.Unavailable and names the plugin. A call whose context ends with a cause of its own (context.Cause),
// for example because the server stops, ends with that cause, like an error of the director. Forward itself refuses methods that only the
// host of a plugin may call (codes.PermissionDenied), calls that have come through too many proxies (codes.FailedPrecondition), and
// answers with too much metadata (codes.ResourceExhausted).
func (d Director) Forward(ctx context.Context, caller grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(caller)
	from, ok := caller.(fragmentCaller)
	if !ok {
		return status.Errorf(codes.Internal, "cannot forward %s: the call is not one of a proxy.Server", method)
	}
	if err := checkMethod(method); err != nil {
		return err
	}
	conn, err := d(ctx, method)
	if err == nil && isNil(conn) {
		err = status.Errorf(codes.Internal, "the director has returned no connection for %s, and no error", method)
	}
	if err == nil {
		err = forward(ctx, from, conn, method)
	}
	cause := context.Cause(ctx)
	if err != nil && cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	return unavailableUnlessStatus(err)
}

// registrationService is the service with which a host identifies a plugin, and notifies it that it is registered or refused.
const registrationService = "pluginregistration.Registration"

// checkMethod returns an error for a method that only the host of a plugin may call: the registration, and the services of the protobuf
// package "plugin", with which the host of a go-plugin plugin stops it, receives its output and brokers connections. It checks the decoded
// path, because a plugin that serves with package net/http decodes the path of a call.
func checkMethod(method string) error {
	method = strings.TrimPrefix(method, "/")
	if decoded, err := url.PathUnescape(method); err == nil {
		method = decoded
	}
	service, _, _ := strings.Cut(method, "/")
	rest, ofGoPlugin := strings.CutPrefix(service, "plugin.")
	switch {
	case service == registrationService:
		return status.Errorf(codes.PermissionDenied, "%s is not forwarded: only the host of a plugin may call it; "+
			"\"patchbay status\" shows what the plugin announced", method)
	case ofGoPlugin && !strings.Contains(rest, "."):
		return status.Errorf(codes.PermissionDenied, "the services of the protobuf package \"plugin\" belong to a go-plugin plugin and its "+
			"own host, which alone may end it: %s is not forwarded", method)
	}
	return nil
}

// everyStream describes a call of any kind: a unary one is a stream with one message each way.
var everyStream = grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

func forward(call context.Context, caller fragmentCaller, conn grpc.ClientConnInterface, method string) error {
	// The cause is an error of receiving from the caller.
	ctx, cancel := context.WithCancelCause(call)
	defer cancel(nil)
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md[HopsKey]) >= maxHops {
		return CallError(nameOf(conn), status.Errorf(codes.FailedPrecondition,
			"the call has come through %d proxies: the endpoint of the plugin leads back to where the call came from", maxHops))
	}
	options := []grpc.CallOption{h2proxy.CallOption{Budget: caller.Budget(), UID: caller.UID()}}
	if subtype := subtypeOf(md); subtype != "" {
		options = append(options, grpc.CallContentSubtype(subtype))
	}
	// gofail: var proxyStream string
	// return CallError(nameOf(conn), errors.New(proxyStream))
	plugin, err := conn.NewStream(metadata.NewOutgoingContext(ctx, rewriteMetadata(md)), &everyStream, method, options...)
	if err != nil {
		return CallError(nameOf(conn), err)
	}
	to, ok := fragmentsOf(plugin)
	if !ok {
		return CallError(nameOf(conn), status.Error(codes.Internal, "its connection does not take fragments of messages: "+
			"return one of a dynamicplugins.Store or of a nodecall.Dialer"))
	}
	// gofail: var proxyRequest string
	// return errors.New(proxyRequest)
	if request := new(h2proxy.Fragment); !forwardWhole(caller, plugin, to, request) {
		// Returns when the caller has half-closed, or when this call has ended, which ends RecvMsg.
		go forwardRequests(caller, plugin, request, cancel)
	}
	err = forwardResponses(caller, plugin, conn)
	if wrong := context.Cause(ctx); err != nil && wrong != nil && call.Err() == nil {
		return wrong
	}
	return err
}

// forwardRequests forwards the caller's messages, beginning with f if it is not empty, until the caller has half-closed or the call has
// ended. It calls cancelCall with the error of a message that cannot be received.
func forwardRequests(caller grpc.ServerStream, plugin grpc.ClientStream, f *h2proxy.Fragment, cancelCall context.CancelCauseFunc) {
	if f.Len() > 0 && plugin.SendMsg(f) != nil {
		return // the error is the status of the call
	}
	for {
		err := caller.RecvMsg(f)
		if errors.Is(err, io.EOF) {
			_ = plugin.CloseSend() // an error is the status of the call
			return
		}
		if err != nil {
			cancelCall(err)
			return
		}
		if plugin.SendMsg(f) != nil {
			return // the error is the status of the call
		}
	}
}

// forwardResponses forwards the plugin's headers, data and trailers, and returns the status of the call.
func forwardResponses(caller grpc.ServerStream, plugin grpc.ClientStream, conn grpc.ClientConnInterface) error {
	// Forwards headers when they arrive, which may be long before the first message. A response without headers has only a status.
	if header, err := plugin.Header(); err == nil && header != nil {
		if err := checkSize(header, conn); err != nil {
			return err
		}
		if err := caller.SendHeader(rewriteMetadata(header)); err != nil {
			return err
		}
	}
	f := new(h2proxy.Fragment)
	for {
		// gofail: var proxyResponse string
		// return status.Error(codes.Unavailable, proxyResponse)
		if err := plugin.RecvMsg(f); err != nil {
			trailer := plugin.Trailer()
			if len(trailer) == 0 && isLost(err) {
				return status.Errorf(codes.Unavailable, "the call was lost with the connection to %s: %s", nameOf(conn), status.Convert(err).Message())
			}
			if err := checkSize(trailer, conn); err != nil {
				return err
			}
			caller.SetTrailer(rewriteMetadata(trailer))
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := caller.SendMsg(f); err != nil {
			return err
		}
	}
}

func checkSize(md metadata.MD, conn grpc.ClientConnInterface) error {
	if size := sizeOf(md); size > maxMetadataSize {
		return status.Errorf(codes.ResourceExhausted, "%s answered with %d bytes of metadata, more than the %d that are forwarded",
			nameOf(conn), size, maxMetadataSize)
	}
	return nil
}

// Named returns conn with a name for the errors of the proxy, for example "plugin csi-node/hostpath.csi.k8s.io".
func Named(conn grpc.ClientConnInterface, name string) grpc.ClientConnInterface {
	return named{conn, name}
}

type named struct {
	grpc.ClientConnInterface
	name string
}

func (n named) String() string { return n.name }

// isNil reports whether conn, or the connection that it names, is nil.
func isNil(conn grpc.ClientConnInterface) bool {
	if n, ok := conn.(named); ok {
		conn = n.ClientConnInterface
	}
	return conn == nil
}

func nameOf(conn grpc.ClientConnInterface) string {
	if n, ok := conn.(fmt.Stringer); ok {
		return n.String()
	}
	return "the plugin"
}
