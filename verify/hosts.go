package verify

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	kubeletSocket = "kubelet.sock"
	kubeletMode   = 0o600
	// maxRegister bounds one registration in bytes, maxRegistered how many wait to be checked.
	maxRegister   = 16 << 10
	maxRegistered = 16
)

func serve(server *grpc.Server, listener net.Listener) (stop func()) {
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends with stop
	return func() {
		server.Stop()
		serving.Wait()
	}
}

// launchingHost is the host that a plugin which was started with a handshake finds: it takes the plugin's log, and grants nothing else.
type launchingHost struct {
	pluginv1.UnimplementedHostServer

	path  string
	log   io.Writer
	close func()
}

func serveHost(path string, log io.Writer) (*launchingHost, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot play the host of the plugin, with a socket of %d bytes at most at %s: %w", sock.MaxPath, path, err)
	}
	h := &launchingHost{path: path, log: log}
	server := grpc.NewServer()
	pluginv1.RegisterHostServer(server, h)
	h.close = serve(server, listener)
	return h, nil
}

// Log writes what a plugin logs to where its output goes.
func (h *launchingHost) Log(stream grpc.ClientStreamingServer[pluginv1.LogRequest, pluginv1.LogResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return stream.SendAndClose(&pluginv1.LogResponse{})
		}
		for _, r := range request.Records {
			fmt.Fprintf(h.log, "%s\n", r.Message)
		}
	}
}

// kubelet serves the registration service of the kubelet for device plugins that register there by themselves.
type kubelet struct {
	deviceapi.UnimplementedRegistrationServer

	path     string
	close    func() // stops serving, and removes the socket
	requests chan *deviceapi.RegisterRequest
}

func serveKubelet(dir string) (*kubelet, error) {
	k := &kubelet{path: filepath.Join(dir, kubeletSocket), requests: make(chan *deviceapi.RegisterRequest, maxRegistered)}
	if err := k.serve(); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *kubelet) serve() error {
	listener, err := sock.Listen(k.path, kubeletMode) // it listens when it appears: plugins act on the appearance
	if err != nil {
		return fmt.Errorf("cannot play the kubelet: %w", err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRegister))
	deviceapi.RegisterRegistrationServer(server, k)
	k.close = serve(server, listener)
	return nil
}

func (k *kubelet) made(path string) bool {
	return path == k.path || path == filepath.Join(filepath.Dir(k.path), "."+kubeletSocket+".lock")
}

func (k *kubelet) forget() {
	for len(k.requests) > 0 {
		<-k.requests
	}
}

// Register implements the service. Like the kubelet, it refuses what it could not use.
func (k *kubelet) Register(_ context.Context, request *deviceapi.RegisterRequest) (*deviceapi.Empty, error) {
	select {
	case k.requests <- request:
	default:
		return nil, status.Error(codes.ResourceExhausted, "there are too many registrations; register once")
	}
	if err := checkRegister(request); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &deviceapi.Empty{}, nil
}

// checkRegister returns what a host would refuse a registration for.
func checkRegister(request *deviceapi.RegisterRequest) error {
	if !slices.Contains(deviceVersions(), request.Version) {
		return fmt.Errorf("version %s is none of %s", untrusted.Quote(request.Version), untrusted.QuoteAll(deviceVersions()))
	}
	return cmp.Or(untrusted.Endpoint(request.Endpoint, kubeletSocket), untrusted.PluginName(registerapi.DevicePlugin, request.ResourceName))
}

func (b *bench) awaitRegister(ctx context.Context, i *instance, within time.Duration) (*appearance, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case request := <-b.kubelet.requests:
		return b.meetRegistered(ctx, request, i)
	case <-i.proc.Done():
		return nil, errEnded
	case <-ctx.Done():
		return nil, fmt.Errorf("nobody registered on %s within %v%s", b.kubelet.path, within, i.lastWords())
	}
}

func (b *bench) meetRegistered(ctx context.Context, request *deviceapi.RegisterRequest, i *instance) (*appearance, error) {
	path := filepath.Join(b.dir, request.Endpoint)
	if filepath.Dir(path) != b.dir || path == b.kubelet.path {
		return nil, fmt.Errorf("the plugin registered endpoint %s, which is not a socket in %s; register the name of the socket alone",
			untrusted.Quote(request.Endpoint), b.dir)
	}
	a, err := meet(ctx, path, i)
	if a == nil {
		return nil, fmt.Errorf("the plugin registered endpoint %s, at which nobody can be reached: %w; serve there before Register",
			untrusted.Quote(request.Endpoint), err)
	}
	a.request = request
	return a, err
}

// registersItself reports whether the plugin registers on kubelet.sock, and is not asked and told by its host.
func (s *subject) registersItself() bool { return s.bench != nil && s.bench.kubelet != nil }
