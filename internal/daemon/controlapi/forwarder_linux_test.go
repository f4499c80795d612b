package controlapi

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/usertest"
)

// TestForwardRefusesStranger calls a plugin as a user who may not use the control socket.
func TestForwardRefusesStranger(t *testing.T) {
	listener, path := usertest.Listen(t, 0)
	b := newBed(t)
	b.register("T", "n", b.serve("one"))
	g := testGuard(path)
	s := (&API{Authorizer: g, Logger: discard, Connector: b.registry}).Serve(listener, func() { t.Error("the server failed") })
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return usertest.Dial(t, path, 65534, 65534), nil }))
	if err != nil {
		t.Fatal(err)
	}
	ctx := grpcmetadata.AppendToOutgoingContext(b.ctx(), proxy.Route("T", "n")...)
	if _, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{}); status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(err.Error(), "user 65534") {
		t.Errorf("got %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

// TestForwardEndsWithRole removes the role of the caller of a plugin while the call is in progress.
func TestForwardEndsWithRole(t *testing.T) {
	listener, path := usertest.Listen(t, 0)
	b := newBed(t)
	one := b.serve("one")
	b.register("T", "n", one)
	g := testGuard(path)
	g.Replace(policyFor(config.Roles{Operate: config.Members{Users: []string{"65534"}}}))
	s := (&API{Authorizer: g, Logger: discard, Connector: b.registry}).Serve(listener, func() { t.Error("the server failed") })
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return usertest.Dial(t, path, 65534, 65534), nil }))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(grpcmetadata.AppendToOutgoingContext(b.ctx(), proxy.Route("T", "n")...))
	if err != nil {
		t.Fatal(err)
	}
	<-one.calls
	g.Replace(policyFor(config.Roles{Read: config.Members{Users: []string{"65534"}}}))
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(err.Error(), "user 65534 has the role read on this control socket, and the call needs operate") {
		t.Errorf("got %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

// TestForwardRefusesWhatIsNotAudited checks that a user with so many different calls that another might not be recorded cannot call. Root
// can.
func TestForwardRefusesWhatIsNotAudited(t *testing.T) {
	listener, path := usertest.Listen(t, 0)
	b := newBed(t)
	b.register("T", "n", b.serve("one"))
	g := testGuard(path)
	g.Replace(policyFor(config.Roles{Operate: config.Members{Users: []string{"65534"}}}))
	s := (&API{Authorizer: g, Logger: discard, Connector: b.registry}).Serve(listener, func() { t.Error("the server failed") })
	user, root := access.NewCaller(sock.Credentials{UID: 65534}), access.NewCaller(sock.Credentials{})
	ask := func(conn grpc.ClientConnInterface, want codes.Code) {
		t.Helper()
		ctx := grpcmetadata.AppendToOutgoingContext(b.ctx(), proxy.Route("T", "n")...)
		if _, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{}); status.Code(err) != want {
			t.Errorf("a call ends with %v, want %v", err, want)
		}
	}
	conn := asNobody(t, path)
	ask(conn, codes.OK)
	for i := range 16384 - 2048 {
		for _, who := range []*access.Caller{user, root} {
			g.Called(access.WithCaller(t.Context(), who), access.Call{Plugin: named("T", "n"), Method: fmt.Sprint("a.B/", i)}, true, codes.Canceled)
		}
	}
	ask(conn, codes.ResourceExhausted)
	byRoot, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ask(byRoot, codes.OK)
	if err := byRoot.Close(); err != nil {
		t.Error(err)
	}
	_ = conn.Close()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

// TestControlIsNoPlugin calls the control API as if the control socket were the endpoint of a plugin: as the daemon itself.
func TestControlIsNoPlugin(t *testing.T) {
	listener, path := usertest.Listen(t, 0)
	g := testGuard(path)
	s := (&API{Authorizer: g, Logger: discard}).Serve(listener, func() { t.Error("the server failed") })
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	for want, ctx := range map[codes.Code]context.Context{
		codes.OK:               t.Context(),
		codes.PermissionDenied: grpcmetadata.AppendToOutgoingContext(t.Context(), proxy.HopsKey, "1"),
	} {
		err := conn.Invoke(ctx, patchbayv1connect.ControlServiceGetVersionProcedure, &patchbayv1.GetVersionRequest{}, &patchbayv1.GetVersionResponse{})
		if status.Code(err) != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
