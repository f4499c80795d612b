package controlapi

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// testPatience bounds how long a test waits for a result that should be immediate.
const testPatience = 2 * time.Minute

// instance is an instance of a plugin. Its answers have its name.
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

func TestMain(m *testing.M) { leaktest.Main(m) }

// bed is a registry with plugins.
type bed struct {
	t        *testing.T
	tmp      string
	registry *dynamicplugins.Store
}

func newBed(t *testing.T) *bed {
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
	t.Cleanup(b.registry.Shutdown)
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

func (b *bed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), testPatience)
	b.t.Cleanup(cancel)
	return ctx
}

// ask returns the name of the instance that answers.
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
