package locks

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestTerm: a lease is believed in for nine tenths of its time from when its renewal was sent, by both clocks.
func TestTerm(t *testing.T) {
	sent := time.Now()
	now := &term{timer: time.NewTimer(time.Hour)}
	now.living, now.end = context.WithCancelCause(t.Context())
	now.extend(sent, 10*time.Second)
	for after, want := range map[time.Duration]bool{0: true, 8 * time.Second: true, 9 * time.Second: false, time.Hour: false} {
		if got := now.isValid(sent.Add(after)); got != want {
			t.Errorf("after %v: %t", after, got)
		}
		if got := now.isValid(sent.Add(after).Round(0)); got != want {
			t.Errorf("after %v by the other clock: %t", after, got)
		}
	}
	now.until = time.Now()
	if now.extend(time.Now(), 10*time.Second); now.isValid(time.Now()) || !errors.Is(context.Cause(now.living), errTermOver) {
		t.Error("a renewal that comes too late makes it valid again")
	}
	if now.until = sent.Add(time.Hour); now.isValid(sent) {
		t.Error("it is valid after its end")
	}
	if (*term)(nil).isValid(sent) {
		t.Error("none is valid")
	}
}

// refusing is a connection that knows without gRPC that it cannot be used.
type refusing struct{ grpc.ClientConnInterface }

func (refusing) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unavailable, "gone")
}

func (refusing) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unavailable, "gone")
}

// TestHoldCountsCalls: a call that its connection refused is over, so the end of the hold does not wait for it.
func TestHoldCountsCalls(t *testing.T) {
	h := &Hold{Token: 7, ended: t.Context()}
	conn := h.Conn(refusing{})
	if err := conn.Invoke(t.Context(), "/s/m", nil, nil); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if _, err := conn.NewStream(t.Context(), &grpc.StreamDesc{}, "/s/m"); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if n := h.calls.Load(); n != 0 {
		t.Errorf("%d calls are in progress", n)
	}
}

// retrying is a connection that makes a call anew when the instance of the plugin was superseded before it was sent, as the registry's does.
type retrying struct{ grpc.ClientConnInterface }

func (retrying) NewStream(
	ctx context.Context, _ *grpc.StreamDesc, _ string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	finish := func() {
		for _, option := range options {
			if o, ok := option.(grpc.OnFinishCallOption); ok {
				o.OnFinish(nil)
			}
		}
	}
	finish()
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	streaming, cancel := context.WithCancel(ctx)
	return finishing{ctx: streaming, finish: func() { cancel(); finish() }}, nil
}

func (c retrying) Invoke(ctx context.Context, method string, _, _ any, options ...grpc.CallOption) error {
	stream, err := c.NewStream(ctx, nil, method, options...)
	if err == nil {
		_ = stream.CloseSend()
	}
	return err
}

type finishing struct {
	grpc.ClientStream
	ctx    context.Context //nolint:containedctx // A stream has a context.
	finish func()
}

func (f finishing) Context() context.Context { return f.ctx }
func (f finishing) CloseSend() error         { f.finish(); return nil }

// TestHoldOutlivesAnInstance: a call that is made again on another instance is one call, and the end of its first try is not that of the call.
func TestHoldOutlivesAnInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Hold{Token: 7, ended: t.Context()}
		conn := h.Conn(retrying{})
		if err := conn.Invoke(t.Context(), "/s/m", nil, nil); err != nil {
			t.Error(err)
		}
		calling, end := context.WithCancel(t.Context())
		defer end()
		stream, err := conn.NewStream(calling, &grpc.StreamDesc{}, "/s/m")
		if err != nil {
			t.Fatal(err)
		}
		if n := h.calls.Load(); n != 1 {
			t.Errorf("%d calls are in progress while one is", n)
		}
		_ = stream.CloseSend()
		end()
		synctest.Wait()
		if n := h.calls.Load(); n != 0 {
			t.Errorf("%d calls are in progress", n)
		}
	})
}

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
	direct := h2proxy.NewClient(h2proxy.ClientConfig{
		Dial:    func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", path) },
		Timeout: time.Minute, Idle: time.Minute, Pause: time.Second,
	})
	defer direct.Close()
	lost, lose := context.WithCancel(t.Context())
	conn := (&Hold{Token: 7, ended: lost}).Conn(direct)
	end, stop := context.WithCancel(t.Context())
	server := proxy.NewServer(end, proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) {
		return conn, nil
	}).Forward, proxy.ServerConfig{})
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
