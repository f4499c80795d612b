package fleet

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/frames"
	"github.com/patchbay-dev/patchbay/proxy"
)

// tokenEcho answers with the fencing token that came with a call.
type tokenEcho struct {
	healthpb.UnimplementedHealthServer
}

func (tokenEcho) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	return nil, nil //nolint:nilnil // Nobody asks.
}

func (tokenEcho) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return &healthpb.HealthCheckResponse{}, grpc.SetHeader(ctx, metadata.Pairs("token", md.Get(proxy.FencingTokenKey)[0]))
}

// TestHoldThroughAStableSocket: calls that are forwarded by fragments to a plugin of which one instance may be active carry the token too,
// and end with the hold.
func TestHoldThroughAStableSocket(t *testing.T) {
	plugin := grpc.NewServer()
	healthpb.RegisterHealthServer(plugin, tokenEcho{})
	at := func(name string, serve func(net.Listener) error) string {
		path := filepath.Join(t.TempDir(), name)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = serve(l) }()
		return path
	}
	path := at("plugin", plugin.Serve)
	defer plugin.Stop()
	direct := frames.NewClient(frames.ClientConfig{
		Dial:    func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", path) },
		Timeout: time.Minute, Idle: time.Minute, Pause: time.Second,
	})
	defer direct.Close()
	lost, lose := context.WithCancel(t.Context())
	conn := (&Hold{Token: 7, ended: lost}).Conn(direct)
	end, stop := context.WithCancel(t.Context())
	server := proxy.NewLocalServer(end, proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) {
		return conn, nil
	}).Forward, proxy.LocalConfig{})
	stable := at("stable", server.Serve)
	defer server.Drain()
	defer stop()
	caller, err := grpc.NewClient("unix:"+stable, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	var header metadata.MD
	_, err = healthpb.NewHealthClient(caller).Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.Header(&header))
	if got := header.Get("token"); err != nil || len(got) != 1 || got[0] != "7" {
		t.Errorf("the token is %v: %v", got, err)
	}
	lose()
	_, err = healthpb.NewHealthClient(caller).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("after the loss: %v", status.Convert(err))
	}
}
