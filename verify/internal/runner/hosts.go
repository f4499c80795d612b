package runner

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
	// KubeletSocket is the name of the kubelet's registration socket in its directory.
	KubeletSocket = "kubelet.sock"
	kubeletMode   = 0o600
	// maxRegister bounds one registration in bytes, maxRegistered the number of queued ones.
	maxRegister   = 16 << 10
	maxRegistered = 16
)

// Serve serves until stop is called. stop returns when the server has stopped.
func Serve(server *grpc.Server, listener net.Listener) (stop func()) {
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until Stop
	return func() {
		server.Stop()
		serving.Wait()
	}
}

// launchingHost is the host of a plugin that was started with a handshake. It accepts log records and implements no other method.
type launchingHost struct {
	pluginv1.UnimplementedHostServer
	log io.Writer
}

func serveHost(path string, log io.Writer) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot play the host of the plugin, with a socket of %d bytes at most at %s: %w", sock.MaxPath, path, err)
	}
	server := grpc.NewServer()
	pluginv1.RegisterHostServer(server, &launchingHost{log: log})
	return Serve(server, listener), nil
}

// Log writes the messages of the plugin's log records to the plugin's output.
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

// Kubelet serves the kubelet's registration service, for device plugins that register on kubelet.sock.
type Kubelet struct {
	deviceapi.UnimplementedRegistrationServer

	path     string
	Close    func() // stops serving, and removes the socket
	requests chan *deviceapi.RegisterRequest
}

func serveKubelet(dir string) (*Kubelet, error) {
	k := &Kubelet{path: filepath.Join(dir, KubeletSocket), requests: make(chan *deviceapi.RegisterRequest, maxRegistered)}
	if err := k.Serve(); err != nil {
		return nil, err
	}
	return k, nil
}

// Serve creates the socket again after Close.
func (k *Kubelet) Serve() error {
	listener, err := sock.Listen(k.path, kubeletMode) // accepts as soon as the file appears: plugins connect immediately
	if err != nil {
		return fmt.Errorf("cannot play the kubelet: %w", err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRegister))
	deviceapi.RegisterRegistrationServer(server, k)
	k.Close = Serve(server, listener)
	return nil
}

// made reports whether k creates the file at path.
func (k *Kubelet) made(path string) bool {
	return path == k.path || path == filepath.Join(filepath.Dir(k.path), "."+KubeletSocket+".lock")
}

// Forget drops the queued registrations.
func (k *Kubelet) Forget() {
	for len(k.requests) > 0 {
		<-k.requests
	}
}

// Register queues the request, and like the kubelet refuses an invalid one.
func (k *Kubelet) Register(_ context.Context, request *deviceapi.RegisterRequest) (*deviceapi.Empty, error) {
	select {
	case k.requests <- request:
	default:
		return nil, status.Error(codes.ResourceExhausted, "there are too many registrations; register once")
	}
	if err := CheckRegister(request); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &deviceapi.Empty{}, nil
}

// CheckRegister returns an error if a host would refuse the registration.
func CheckRegister(request *deviceapi.RegisterRequest) error {
	if versions := deviceapi.SupportedVersions[:]; !slices.Contains(versions, request.Version) {
		return fmt.Errorf("version %s is none of %s", untrusted.Quote(request.Version), untrusted.QuoteAll(versions))
	}
	return cmp.Or(untrusted.Endpoint(request.Endpoint, KubeletSocket), untrusted.PluginName(registerapi.DevicePlugin, request.ResourceName))
}

// AwaitRegister waits until the instance registers on kubelet.sock, and connects to the socket that it registers.
func (r *Runner) AwaitRegister(ctx context.Context, i *Instance, within time.Duration) (*Appearance, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case request := <-r.Kubelet.requests:
		return r.meetRegistered(ctx, request, i)
	case <-i.proc.Done():
		return nil, errEnded
	case <-ctx.Done():
		return nil, fmt.Errorf("nobody registered on %s within %v%s", r.Kubelet.path, within, i.lastWords())
	}
}

func (r *Runner) meetRegistered(ctx context.Context, request *deviceapi.RegisterRequest, i *Instance) (*Appearance, error) {
	path := filepath.Join(r.Dir, request.Endpoint)
	if filepath.Dir(path) != r.Dir || path == r.Kubelet.path {
		return nil, fmt.Errorf("the plugin registered endpoint %s, which is not a socket in %s; register the name of the socket alone",
			untrusted.Quote(request.Endpoint), r.Dir)
	}
	a, err := meet(ctx, path, i)
	if a == nil {
		return nil, fmt.Errorf("the plugin registered endpoint %s, at which nobody can be reached: %w; serve there before Register",
			untrusted.Quote(request.Endpoint), err)
	}
	a.Request = request
	return a, err
}
