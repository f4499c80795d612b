package stablesocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// testPatience bounds how long a test waits for what should happen at once.
const testPatience = 2 * time.Minute

// instance is an instance of a plugin, which says in each answer who it is.
type instance struct {
	testpb.UnimplementedTestServiceServer
	id     string
	path   string
	server *grpc.Server
	calls  chan struct{} // one for each duplex call that has begun
}

func (i *instance) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: i.id}, nil
}

func (i *instance) FullDuplexCall(s testpb.TestService_FullDuplexCallServer) error {
	select {
	case i.calls <- struct{}{}:
	default:
	}
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallResponse{Payload: r.GetPayload()})
		}
		if err != nil {
			return err
		}
	}
}

// bed is a registry with stable sockets.
type bed struct {
	*Sockets
	t        *testing.T
	tmp      string
	registry *dynamicplugins.Store
	stopRun  func()
}

// manyConns has bounds that no test comes near.
func manyConns() *limits.Connections {
	return limits.NewConnections(uint32(os.Geteuid()), 1<<20, nil, nil, discard)
}

func newBed(t *testing.T, change func(*Sockets)) *bed {
	t.Helper()
	tmp, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	b := &bed{t: t, tmp: tmp}
	if b.registry, err = dynamicplugins.Open(nil, nil); err != nil {
		t.Fatal(err)
	}
	b.Sockets = &Sockets{Dir: filepath.Join(tmp, "d"), Registry: b.registry, Calls: b.registry, Conns: manyConns(), Log: discard}
	if err := b.Init(); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(b.Sockets)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Run(ctx)
	}()
	b.stopRun = func() {
		cancel()
		<-ended
	}
	t.Cleanup(func() {
		b.stopRun()
		b.registry.Shutdown()
	})
	return b
}

// serve starts an instance.
func (b *bed) serve(id string) *instance {
	b.t.Helper()
	i := &instance{id: id, path: filepath.Join(b.tmp, id), server: grpc.NewServer(), calls: make(chan struct{}, 100)}
	testpb.RegisterTestServiceServer(i.server, i)
	listener, err := net.Listen("unix", i.path)
	if err != nil {
		b.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- i.server.Serve(listener) }()
	b.t.Cleanup(func() {
		i.server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			b.t.Error(err)
		}
	})
	return i
}

func (b *bed) register(ptype, name string, i *instance) {
	b.t.Helper()
	if err := b.registry.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: ptype, Name: name, AllocID: i.id, ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: i.path},
	}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) deregister(ptype, name, id string) {
	b.t.Helper()
	if err := b.registry.DeregisterPlugin(ptype, name, id); err != nil {
		b.t.Fatal(err)
	}
}

// socket waits until the socket of a plugin is there, or is not, and returns its path.
func (b *bed) socket(ptype, name string, there bool) string {
	b.t.Helper()
	path := socketPath(b.Dir, named(ptype, name))
	until(b.t, fmt.Sprintf("%s is there: %t", path, there), func() bool {
		_, err := os.Lstat(path)
		return (err == nil) == there
	})
	return path
}

// client waits for the socket of a plugin and returns a client of it.
func (b *bed) client(ptype, name string) testpb.TestServiceClient {
	b.t.Helper()
	path := b.socket(ptype, name, true)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, path) }))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

func (b *bed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), testPatience)
	b.t.Cleanup(cancel)
	return ctx
}

// ask returns who answers.
func (b *bed) ask(c testpb.TestServiceClient) string {
	b.t.Helper()
	r, err := c.UnaryCall(b.ctx(), &testpb.SimpleRequest{})
	if err != nil {
		return err.Error()
	}
	return r.GetUsername()
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(testPatience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

var discard = slog.New(slog.DiscardHandler)

func named(ptype, name string) plugin.Name {
	return plugin.Name{Type: ptype, Name: name}
}

func TestMain(m *testing.M) {
	if path := os.Getenv(dyingEnv); path != "" {
		if err := listenAndEnd(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// dyingEnv makes the test binary listen at the path that it names and end while a process that it started shares the listener for a moment.
const dyingEnv = "PATCHBAY_TEST_DYING"

func listenAndEnd(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	if err != nil {
		return err
	}
	sharer := exec.Command("sleep", "0.3")
	sharer.ExtraFiles = []*os.File{file}
	return sharer.Start()
}
