package nodecall

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// TestRenewedUnderCalls checks that no call fails while certificates are renewed repeatedly. A call in progress continues over its
// connection, which is closed after it.
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

	d := &Dialer{Credentials: mustCredentials(t, ca.node("a")), Find: func(context.Context, fleet.Filter) ([]fleet.Instance, error) {
		return []fleet.Instance{{Node: &fleet.Node{NodeRecord: &fleetv1.NodeRecord{Address: listener.Addr().String()}, Name: "b"}}}, nil
	}}
	defer d.Close()
	client := healthpb.NewHealthClient(through(t, d.Dial("T", "n", Policy{})))
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
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.all)
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

// TestWithdrawnUnderCalls checks that calls in progress at a node end when the CA that signed its certificate is removed.
func TestWithdrawnUnderCalls(t *testing.T) {
	ca, next := newAuthority(t), newAuthority(t)
	ca.node("b")
	next.node("b")
	files := ca.node("a")
	bundle := func(of ...*authority) {
		t.Helper()
		var text []byte
		for _, a := range of {
			part, err := os.ReadFile(a.files("b").CA)
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, part...)
		}
		if err := os.WriteFile(files.CA, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files.CA += "s"
	bundle(ca)
	address := map[string]string{}
	for name, a := range map[string]*authority{"old": ca, "new": next} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: a.pair("b"), NextProtos: []string{"h2"}})))
		healthpb.RegisterHealthServer(server, health.NewServer())
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		address[name] = listener.Addr().String()
	}
	own := mustCredentials(t, files)
	bundle(ca, next)
	watch := func(name string) grpc.ServerStreamingClient[healthpb.HealthCheckResponse] {
		t.Helper()
		d := &Dialer{Credentials: own, Find: func(context.Context, fleet.Filter) ([]fleet.Instance, error) {
			return []fleet.Instance{{Node: &fleet.Node{NodeRecord: &fleetv1.NodeRecord{Address: address[name]}, Name: "b"}}}, nil
		}}
		t.Cleanup(d.Close)
		call, err := healthpb.NewHealthClient(through(t, d.Dial("T", "n", Policy{}))).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = call.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		return call
	}
	withdrawn, kept := watch("old"), watch("new")
	bundle(next)
	own.Certificate("") // reads the files
	if _, err := withdrawn.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the call at the old node ended with %v", err)
	}
	if err := kept.Context().Err(); err != nil {
		t.Errorf("that at the new one ended with %v", err)
	}
	open := func() int {
		own.mu.Lock()
		defer own.mu.Unlock()
		return len(own.live)
	}
	for range 200 { // the call may end before its connection is closed
		if open() == 1 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d connections are open", open())
}

// TestMovedNode checks that the old connection to a node that is called at another address takes no new calls, and is closed after the last
// one.
func TestMovedNode(t *testing.T) {
	d := &Dialer{Credentials: mustCredentials(t, newAuthority(t).node("a"))}
	defer d.Close()
	get := func(node, address string) *nodeConn {
		t.Helper()
		c, err := d.get(poolKey{node, address})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	calling, done, other := get("b", "127.0.0.1:1"), get("b", "127.0.0.1:2"), get("c", "127.0.0.1:1")
	done.release()
	get("b", "127.0.0.1:3")
	d.mu.Lock()
	if !d.all[calling] || d.conns[calling.key] != nil || d.all[done] || d.conns[other.key] != other || len(d.conns) != 2 {
		t.Errorf("connections: %v, all: %v", d.conns, d.all)
	}
	d.mu.Unlock()
	calling.release()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all[calling] {
		t.Error("the old connection stays")
	}
}

// through returns a connection of a program to a connection of the fleet, through a stable socket like those of daemons.
func through(t *testing.T, to grpc.ClientConnInterface) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := proxy.NewServer(ctx, proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) {
		return to, nil
	}).Forward, proxy.ServerConfig{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		server.Drain()
		serving.Wait()
	})
	return conn
}
