package dynamicplugins_test

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// teller is a stats handler that keeps how calls ended.
type teller struct {
	mu    sync.Mutex
	ended []codes.Code
}

func (*teller) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*teller) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*teller) HandleConn(context.Context, stats.ConnStats)                       {}

func (h *teller) HandleRPC(_ context.Context, s stats.RPCStats) {
	if end, ok := s.(*stats.End); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ended = append(h.ended, status.Code(end.Error))
	}
}

// intercepting are connections with an interceptor.
type intercepting struct {
	dialing
	interceptor func(socketPath string) grpc.StreamClientInterceptor
}

func (i intercepting) Interceptor(socketPath string) grpc.StreamClientInterceptor {
	return i.interceptor(socketPath)
}

func dialPlain(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

// TestForwardedCalls: what goes through a stable socket is told to the stats handlers, intercepted, and waited for by its instance.
func TestForwardedCalls(t *testing.T) {
	told := &teller{}
	var intercepted []string
	r := open(t, nil, nil, dynamicplugins.WithStatsHandlers(told), dynamicplugins.WithConnections(intercepting{dialPlain,
		func(socketPath string) grpc.StreamClientInterceptor {
			return func(
				ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				intercepted = append(intercepted, filepath.Base(socketPath)+method)
				return open(ctx, desc, conn, method, options...)
			}
		}}))
	first, second := serve(t, "first"), serve(t, "second")
	pending := pendingcalls.At(first.path)
	register(t, r, first.info("1"))
	conn, err := r.Conn(t.Context(), "t", "n")
	check(t, err)
	client := forwardedTo(t, conn)
	expectWho(t, client, "first")
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	check(t, err)
	_, err = stream.Recv()
	check(t, err)
	if pending.Mark(); pending.Answers() != 2 || pending.Marked() {
		t.Errorf("%d calls are counted as answered, want the check and the watch, which goes on; and one waits: %t", pending.Answers(),
			pending.Marked())
	}
	register(t, r, second.info("2"))
	expectWho(t, client, "second")
	first.awaitOpen(t, 1)
	close(first.hold)
	readToEnd(stream)
	first.awaitOpen(t, 0)
	const service = "/grpc.health.v1.Health/"
	if want := []string{"first" + service + "Check", "first" + service + "Watch", "second" + service + "Check"}; !slices.Equal(intercepted, want) {
		t.Errorf("intercepted: %v, want %v", intercepted, want)
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	if want := []codes.Code{codes.NotFound, codes.NotFound, codes.OK}; !slices.Equal(told.ended, want) {
		t.Errorf("told: %v, want %v", told.ended, want)
	}
}

// forwardedTo returns a client of what forwards to a connection as a stable socket does.
func forwardedTo(t *testing.T, conn grpc.ClientConnInterface) healthClient {
	t.Helper()
	path := filepath.Join(filepath.Dir(serve(t, "beside").path), "stable")
	l, err := net.Listen("unix", path)
	check(t, err)
	end, stop := context.WithCancel(context.Background())
	server := proxy.NewServer(end, proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) {
		return conn, nil
	}).Forward, proxy.ServerConfig{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	caller, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	t.Cleanup(func() {
		check(t, caller.Close())
		stop()
		server.Drain()
		check(t, <-served)
	})
	return grpc_health_v1.NewHealthClient(caller)
}
