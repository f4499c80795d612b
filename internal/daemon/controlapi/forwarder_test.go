package controlapi

import (
	"bytes"
	"context"
	"net/http"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// control serves the control socket in front of the bed's registry, and returns its path.
func (b *bed) control() (*server.Server, string) {
	b.t.Helper()
	path := filepath.Join(b.tmp, "control.sock")
	listener, err := sock.Listen(path, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	g := testGuard(path)
	s := (&API{Authorizer: g, Logger: discard, Connector: b.registry}).Serve(listener,
		func() { b.t.Error("the server failed") })
	return s, path
}

// through returns a client of a plugin through the control socket at path.
func (b *bed) through(path, ptype, name string) testpb.TestServiceClient {
	b.t.Helper()
	conn, err := client.New(path).Conn(ptype, name)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

func TestForward(t *testing.T) {
	b := newBed(t)
	s, path := b.control()
	const ptype, name = "T/ä", "../%2f\x00"
	one := b.serve("one")
	b.register(ptype, name, one)
	b.register("T", "two", b.serve("two"))
	c := b.through(path, ptype, name)
	if got := b.ask(c); got != "one" {
		t.Errorf("asked %s", got)
	}
	if got := b.ask(b.through(path, "T", "two")); got != "two" {
		t.Errorf("asked %s", got)
	}
	if _, err := b.through(path, "T", "three").UnaryCall(b.ctx(), &testpb.SimpleRequest{}); status.Code(err) != codes.Unavailable ||
		status.Convert(err).Message() != "cannot call plugin T/three: plugin three for type T not found" {
		t.Errorf("a plugin that is not there: %v", err)
	}
	stream, err := c.FullDuplexCall(b.ctx())
	if err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte{1}, 8<<20)
	for range 3 {
		if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: large[:3<<20]}}); err != nil {
			t.Fatal(err)
		}
		if r, err := stream.Recv(); err != nil || len(r.GetPayload().GetBody()) != 3<<20 {
			t.Fatalf("%d bytes, %v", len(r.GetPayload().GetBody()), err)
		}
	}
	if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: large}}); err != nil {
		t.Fatal(err)
	}
	// The limit of the plugin applies.
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message larger than the plugin takes: %v", err)
	}
	stream, err = c.FullDuplexCall(b.ctx())
	if err != nil {
		t.Fatal(err)
	}
	<-one.calls
	s.EndCalls()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != server.ErrStopping.Error() {
		t.Errorf("a call in progress at the end: %v", err)
	}
	if _, err := c.UnaryCall(b.ctx(), &testpb.SimpleRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a new call at the end: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := c.UnaryCall(b.ctx(), &testpb.SimpleRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a daemon: %v", err)
	}
}

// TestForwardEndsWithCaller checks that the plugin's call is canceled when the caller cancels it.
func TestForwardEndsWithCaller(t *testing.T) {
	b := newBed(t)
	s, path := b.control()
	one := b.serve("one")
	b.register("T", "n", one)
	ctx, cancel := context.WithCancel(b.ctx())
	if _, err := b.through(path, "T", "n").FullDuplexCall(ctx); err != nil {
		t.Fatal(err)
	}
	<-one.calls
	cancel()
	one.server.GracefulStop() // waits for the call
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

func TestForwardRefuses(t *testing.T) {
	b := newBed(t)
	b.register("T", "n", b.serve("one"))
	forwarder := service{&API{Authorizer: testGuard(b.tmp), Logger: discard, Connector: b.registry}}.newForwarder()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	path := filepath.Join(b.tmp, "open.sock")
	listener, err := sock.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	// This server does not identify callers.
	open := server.Start("test", listener, &http.Server{Handler: forwarder, Protocols: protocols}, func() { t.Error("failed") }, discard)
	if _, err := b.through(path, "T", "n").UnaryCall(b.ctx(), &testpb.SimpleRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a caller whom nobody judged: %v", err)
	}
	if err := open.Stop(); err != nil {
		t.Error(err)
	}

	s, path := b.control()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	for name, ctx := range map[string]context.Context{
		"no route":   b.ctx(),
		"half of it": grpcmetadata.AppendToOutgoingContext(b.ctx(), proxy.TypeKey, "T"),
	} {
		if _, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := client.New(path).Conn("", "n"); err == nil {
		t.Error("a connection to no type")
	}
}
