package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// childEnv has the re-executed test binary serve a plugin on the socket that it names.
const childEnv = "REGISTRATION_TEST_SERVE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if err := serveChild(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	leaktest.Main(m)
}

// serveChild serves a plugin until the end of standard input.
func serveChild(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := newServer(&fakePlugin{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		server.Stop()
	}()
	fmt.Println("listening")
	return server.Serve(l)
}

// startChild serves a plugin in a process of its own until the end of the test.
func startChild(t testing.TB) (path string, child *exec.Cmd) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(tempDir(t), "s")
	child = exec.Command(exe)
	child.Env = append(os.Environ(), childEnv+"="+path)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = child.Wait()
	})
	said := make([]byte, 256)
	n, _ := stdout.Read(said)
	if s := string(said[:n]); !strings.HasPrefix(s, "listening") {
		t.Fatalf("the plugin process said %q", s)
	}
	return path, child
}

// tempDir returns a directory with a path that is short enough for sockets.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// announced is what a [plugin] says of itself unless told otherwise.
var announced = plugin.Info{Type: "CSIPlugin", Name: "hostpath.csi.k8s.io", Endpoint: "/run/csi.sock", Versions: []string{"1.0.0", "1.1.0"}}

// plugin is a registration service.
type fakePlugin struct {
	registerapi.UnimplementedRegistrationServer
	getInfo func(context.Context) (*registerapi.PluginInfo, error) // nil for one that announces announced
	notify  func(context.Context, *registerapi.RegistrationStatus) error

	mu   sync.Mutex
	told []string
}

func (p *fakePlugin) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if p.getInfo != nil {
		return p.getInfo(ctx)
	}
	return &registerapi.PluginInfo{
		Type: announced.Type, Name: announced.Name, Endpoint: announced.Endpoint, SupportedVersions: announced.Versions,
	}, nil
}

func (p *fakePlugin) NotifyRegistrationStatus(
	ctx context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	p.mu.Lock()
	p.told = append(p.told, fmt.Sprint(s.PluginRegistered, " ", s.Error))
	p.mu.Unlock()
	if p.notify != nil {
		if err := p.notify(ctx, s); err != nil {
			return nil, err
		}
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

func newServer(p *fakePlugin, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(options...)
	registerapi.RegisterRegistrationServer(server, p)
	return server
}

// serve serves p with grpc-go until the end of the test.
func serve(t testing.TB, p *fakePlugin, options ...grpc.ServerOption) (path string, server *grpc.Server) {
	t.Helper()
	path = filepath.Join(tempDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server = newServer(p, options...)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("Serve: %v", err)
		}
	})
	return path, server
}

// dial connects a client until the end of the test.
func dial(t testing.TB, path string) *Client {
	t.Helper()
	c, err := dialAt(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// dialAt returns a client on a connection of its own.
func dialAt(ctx context.Context, path string) (*Client, error) {
	socket, err := sock.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return New(socket), nil
}
