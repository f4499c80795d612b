package fleet

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestRenewedUnderCalls: no call fails while certificates are renewed again and again; a call in progress goes on over its connection, which
// closes after it.
func TestRenewedUnderCalls(t *testing.T) {
	ca := newAuthority(t)
	ca.node("b")
	served := mustCredentials(t, ca.files("b"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(served.Server())), grpc.UnaryInterceptor(
		func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if who, err := served.Caller(ctx); err != nil || len(who) != 1 || who[0] != "a" {
				return nil, status.Errorf(codes.PermissionDenied, "%v calls: %v", who, err)
			}
			return handle(ctx, request)
		}))
	healthpb.RegisterHealthServer(server, health.NewServer())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	defer running.Wait()
	defer server.Stop()

	d := NewDialer(DialerConfig{Credentials: mustCredentials(t, ca.node("a")), Find: func(context.Context, Filter) ([]Instance, error) {
		return []Instance{{Plugin: Plugin{Node: "b"}, Address: listener.Addr().String()}}, nil
	}})
	defer d.Close()
	client := healthpb.NewHealthClient(d.Dial("T", "n", Policy{}))
	watching, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch, err := client.Watch(watching, &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}

	var calling sync.WaitGroup
	for range 4 {
		calling.Go(func() {
			for range 100 {
				if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	calling.Go(func() {
		for range 20 {
			ca.node("a")
		}
	})
	calling.Wait()
	count := func() (all int) {
		d.pool.mu.Lock()
		defer d.pool.mu.Unlock()
		return len(d.pool.all)
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || count() != 2 {
		t.Errorf("%d connections, want the present one and that of the call in progress: %v", count(), err)
	}
	cancel()
	if _, err := watch.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("the call in progress ended with %v", err)
	}
	d.Close()
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("after Close: %v", err)
	}
}
