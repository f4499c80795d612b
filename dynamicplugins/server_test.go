package dynamicplugins_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// server is a real plugin: a health service on a Unix socket that answers NOT_FOUND with its name, so that tests see who answered,
// and knows which connections it has.
type server struct {
	grpc_health_v1.UnimplementedHealthServer
	path string

	mu       sync.Mutex
	accepted int
	open     int
	changed  chan struct{} // closed when open changes

	hold chan struct{} // calls of Watch send one message and end when it is closed
	held chan struct{} // gets a value when a call of Check for the service "held" has come, which never ends by itself
}

// serve starts a server that is stopped at the end of the test.
func serve(t testing.TB, name string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "patchbay") // shorter than t.TempDir
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &server{path: filepath.Join(dir, name), changed: make(chan struct{}), hold: make(chan struct{}), held: make(chan struct{}, 1)}
	l, err := net.Listen("unix", s.path)
	check(t, err)
	g := grpc.NewServer(grpc.StatsHandler(s))
	grpc_health_v1.RegisterHealthServer(g, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) })
	t.Cleanup(func() {
		g.Stop()
		serving.Wait()
	})
	return s
}

func (s *server) Check(ctx context.Context, request *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if request.GetService() == "held" {
		s.held <- struct{}{}
		<-ctx.Done()
	}
	return nil, status.Error(codes.NotFound, filepath.Base(s.path))
}

func (s *server) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	if err := stream.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
		return err
	}
	select {
	case <-s.hold:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (s *server) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (s *server) HandleRPC(context.Context, stats.RPCStats)                         {}
func (s *server) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (s *server) HandleConn(_ context.Context, e stats.ConnStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.(type) {
	case *stats.ConnBegin:
		s.open++
		s.accepted++
	case *stats.ConnEnd:
		s.open--
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// awaitOpen waits until n connections are open.
func (s *server) awaitOpen(t testing.TB, n int) {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		s.mu.Lock()
		open, changed := s.open, s.changed
		s.mu.Unlock()
		if open == n {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("%d connections to %s are open, want %d", open, s.path, n)
		}
	}
}

// info describes the server as instance id of plugin t/n.
func (s *server) info(id string) *dynamicplugins.PluginInfo {
	p := newInfo("t", "n", id)
	p.ConnectionInfo.SocketPath = s.path
	return p
}

type healthClient = grpc_health_v1.HealthClient

func health(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
	return grpc_health_v1.NewHealthClient(conn), nil
}

// who returns which server answers the client.
func who(t testing.TB, client healthClient) string {
	t.Helper()
	_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if status.Code(err) != codes.NotFound {
		t.Errorf("Check: %v", err)
	}
	return status.Convert(err).Message()
}

func expectWho(t testing.TB, client healthClient, want string) {
	t.Helper()
	if got := who(t, client); got != want {
		t.Errorf("%s answered, want %s", got, want)
	}
}
