package daemon

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/proxy"
)

// TestForwardRefusesStranger calls a plugin as a user who may not use the control socket.
func TestForwardRefusesStranger(t *testing.T) {
	listener, path := openSocket(t, 0)
	b := newBed(t, nil)
	b.register("T", "n", b.serve("one"))
	s := serve(listener, newGuard(path), &control{calls: newForwarder(b.registry, nil), started: time.Now()},
		func() { t.Error("the server failed") }, discard)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dialAs(t, path, 65534, 65534), nil }))
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
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}
