//go:build linux

package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// fake is a plugin that conforms, but for what its fields break.
type fake struct {
	registerapi.UnimplementedRegistrationServer
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	csi.UnimplementedControllerServer
	deviceapi.UnimplementedDevicePluginServer

	info     *registerapi.PluginInfo
	socket   string // its name
	dirMode  os.FileMode
	mode     os.FileMode
	uid      int
	health   grpc_health_v1.HealthCheckResponse_ServingStatus
	sick     string // the service that is not well
	nodeOnly bool   // announces no controller
	useless  bool   // has no service of its own
	broken   string // the methods that are not implemented
	conns    func(f *fake, conn net.Conn) net.Conn
	limit    int // of connections
	eager    bool

	mu       sync.Mutex
	asked    int
	told     int
	again    bool // says something else later
	deaf     bool // accepts a status once
	lost     bool // a connection was lost, which it does not survive
	slow     time.Duration
	server   *grpc.Server
	devices  []*deviceapi.Device
	hangUp   bool
	pluginID string
	nodeID   string
	stuck    sync.Mutex // held while a peer reads nothing
	refused  bool
	fragile  bool // does not take a status after a refusal
}

func newFake(ptype string) *fake {
	f := &fake{
		socket: "p.sock", dirMode: 0o755, mode: 0o600, uid: -1, health: grpc_health_v1.HealthCheckResponse_SERVING, pluginID: "a.example.com",
		nodeID: "n", devices: []*deviceapi.Device{{ID: "d", Health: deviceapi.Healthy}},
		info: &registerapi.PluginInfo{Type: ptype, Name: "a.example.com", SupportedVersions: []string{"v1beta1"}},
	}
	switch ptype {
	case registerapi.CSIPlugin:
		f.info.SupportedVersions = []string{"1.9.0"}
	case registerapi.DevicePlugin:
		f.info.Name = "example.com/a"
	case registerapi.DRAPlugin:
		f.info.SupportedVersions = []string{drav1.DRAPluginService}
	}
	return f
}

// serve serves until stop is called.
func (f *fake) serve(dir string) (socket string, stop func(), err error) {
	socket = filepath.Join(dir, f.socket)
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return "", nil, err
	}
	if err := errors.Join(os.Chmod(socket, f.mode), os.Chmod(dir, f.dirMode)); err != nil {
		return "", nil, err
	}
	if f.uid >= 0 {
		if err := os.Chown(socket, f.uid, -1); err != nil {
			return "", nil, err
		}
	}
	f.server = f.newServer()
	var served sync.WaitGroup
	served.Go(func() { _ = f.server.Serve(&fakeListener{Listener: listener, fake: f}) })
	return socket, func() { f.server.Stop(); served.Wait() }, nil
}

func (f *fake) newServer() *grpc.Server {
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if slices.Contains(strings.Fields(f.broken), path.Base(info.FullMethod)) {
				return nil, status.Error(codes.Unimplemented, "broken")
			}
			return next(ctx, request)
		}))
	registerapi.RegisterRegistrationServer(server, f)
	if f.useless {
		reflection.Register(server)
		return server
	}
	switch f.info.Type {
	case registerapi.CSIPlugin:
		csi.RegisterIdentityServer(server, f)
		csi.RegisterNodeServer(server, f)
		csi.RegisterControllerServer(server, f)
	case registerapi.DevicePlugin:
		deviceapi.RegisterDevicePluginServer(server, f)
	case registerapi.DRAPlugin:
		drav1.RegisterDRAPluginServer(server, fakeDRA{})
	default:
		v1beta1.RegisterExampleServer(server, v1beta1.UnimplementedExampleServer{})
	}
	h := health.NewServer()
	h.SetServingStatus("", f.health)
	if f.sick != "" {
		h.SetServingStatus(f.sick, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
	grpc_health_v1.RegisterHealthServer(server, h)
	reflection.Register(server)
	return server
}

func (f *fake) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if f.eager {
		f.stuck.Lock()
		defer f.stuck.Unlock()
	}
	select {
	case <-time.After(f.slow):
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.lost {
		return nil, status.Error(codes.Internal, "where is my host?")
	}
	if f.again {
		return &registerapi.PluginInfo{Type: f.info.Type, Name: f.info.Name, SupportedVersions: []string{fmt.Sprint("v", f.asked)}}, nil
	}
	return f.info, nil
}

func (f *fake) NotifyRegistrationStatus(
	_ context.Context, told *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told++; f.deaf && f.told == 2 || f.fragile && f.refused {
		return nil, status.Error(codes.AlreadyExists, "no")
	}
	f.refused = f.refused || !told.PluginRegistered
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (f *fake) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: f.pluginID, VendorVersion: "1"}, nil
}

func (f *fake) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (f *fake) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	if f.nodeOnly {
		return &csi.GetPluginCapabilitiesResponse{}, nil
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
	}}}}, nil
}

func (f *fake) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (f *fake) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: f.nodeID}, nil
}

func (f *fake) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{}, nil
}

func (f *fake) GetDevicePluginOptions(context.Context, *deviceapi.Empty) (*deviceapi.DevicePluginOptions, error) {
	return &deviceapi.DevicePluginOptions{}, nil
}

func (f *fake) ListAndWatch(_ *deviceapi.Empty, stream grpc.ServerStreamingServer[deviceapi.ListAndWatchResponse]) error {
	if err := stream.Send(&deviceapi.ListAndWatchResponse{Devices: f.devices}); err != nil || f.hangUp {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

type fakeDRA struct {
	drav1.UnimplementedDRAPluginServer
}

func (fakeDRA) NodePrepareResources(context.Context, *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	return nil, errors.New("no devices")
}

func (fakeDRA) NodeUnprepareResources(
	context.Context, *drav1.NodeUnprepareResourcesRequest,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	return &drav1.NodeUnprepareResourcesResponse{}, nil
}

// fakeListener lets a fake break its connections.
type fakeListener struct {
	net.Listener

	fake *fake
	mu   sync.Mutex
	open int
}

func (l *fakeListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		l.open++
		full := l.fake.limit > 0 && l.open > l.fake.limit
		l.mu.Unlock()
		wrapped := net.Conn(&countedConn{Conn: conn, closed: sync.OnceFunc(func() { l.mu.Lock(); l.open--; l.mu.Unlock() })})
		if full {
			_ = wrapped.Close()
			continue
		}
		if l.fake.conns != nil {
			if wrapped = l.fake.conns(l.fake, wrapped); wrapped == nil {
				_ = conn.Close()
				continue
			}
		}
		return wrapped, nil
	}
}

type countedConn struct {
	net.Conn

	closed func()
}

func (c *countedConn) Close() error { c.closed(); return c.Conn.Close() }

// sniffer calls seen with the first bytes that a connection reads, and gone when it is closed.
type sniffer struct {
	net.Conn

	seen func([]byte)
	gone func()
}

func (s *sniffer) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 && s.seen != nil {
		s.seen(b[:n])
	}
	if err != nil && s.gone != nil {
		s.gone()
	}
	return n, err
}

// closedWindow is a frame with the one setting of a peer that reads nothing.
var closedWindow = []byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0}

// onClosedWindow calls enter when a peer has said that it reads nothing, and leave when it is gone.
func onClosedWindow(conn net.Conn, enter, leave func()) net.Conn {
	var in, out sync.Once
	entered := false
	return &sniffer{Conn: conn, seen: func(b []byte) {
		if bytes.Contains(b, closedWindow) {
			in.Do(func() { entered = true; enter() })
		}
	}, gone: func() {
		if entered {
			out.Do(leave)
		}
	}}
}
