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
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// fake is a plugin that conforms, except where its fields break rules.
type fake struct {
	registerapi.UnimplementedRegistrationServer
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	deviceapi.UnimplementedDevicePluginServer

	info     *registerapi.PluginInfo
	socket   string // the name of the socket
	dirMode  os.FileMode
	mode     os.FileMode
	uid      int
	health   grpc_health_v1.HealthCheckResponse_ServingStatus
	unready  atomic.Int32 // how often a driver reports that it is not ready
	sick     string       // the service that is not healthy
	nodeOnly bool         // announces no controller
	capacity int64
	topology map[string]string
	manifest map[string]string
	hides    string // capabilities that are not announced
	dra      *fakeDRA
	useless  bool   // has no service of its type
	broken   string // the methods that are not implemented
	conns    func(f *fake, conn net.Conn) net.Conn
	listener net.Listener // of the server
	limit    int          // of connections
	eager    bool

	mu       sync.Mutex
	asked    int
	told     int
	again    bool // changes its answer to GetInfo
	deaf     bool // accepts one notification only
	lost     bool // a connection was lost, after which it does not work
	slow     time.Duration
	server   *grpc.Server
	devices  []*deviceapi.Device
	hangUp   bool
	lists    int                     // how many lists are sent; negative for no bound
	later    []*deviceapi.Device     // in a later list
	change   string                  // the devices change when this file appears; empty if they do not
	prefers  func([]string) []string // returns the preferred devices of those offered
	devBroke string                  // the rule about calls of device plugins that is broken
	pluginID string
	nodeID   string
	stuck    sync.Mutex // held while a peer reads nothing
	refused  bool
	fragile  bool // fails when it is notified after a refusal
}

func newFake(ptype string) *fake {
	f := &fake{
		socket: "p.sock", dirMode: 0o755, mode: 0o600, uid: -1, health: grpc_health_v1.HealthCheckResponse_SERVING, pluginID: "a.example.com",
		nodeID: "n", devices: []*deviceapi.Device{{ID: "d", Health: deviceapi.Healthy}, {ID: "sick", Health: deviceapi.Unhealthy}},
		topology: map[string]string{"example.com/zone": "z1", "example.com/rack": "r-1"}, manifest: map[string]string{"commit": "abc"},
		lists: -1, prefers: func(offered []string) []string { return offered }, dra: &fakeDRA{},
		info: &registerapi.PluginInfo{Type: ptype, Name: "a.example.com", SupportedVersions: []string{"v1beta1"}},
	}
	switch ptype {
	case registerapi.CSIPlugin:
		f.info.SupportedVersions = []string{"1.9.0"}
	case registerapi.DevicePlugin:
		f.info.Name = "example.com/a"
	case registerapi.DRAPlugin:
		f.info.SupportedVersions = []string{drav1.DRAPluginService, draHealth, draHealthAlpha}
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
	f.listener = listener
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
		csi.RegisterGroupControllerServer(server, f)
	case registerapi.DevicePlugin:
		deviceapi.RegisterDevicePluginServer(server, f)
	case registerapi.DRAPlugin:
		drav1.RegisterDRAPluginServer(server, f.dra)
		for _, name := range []string{draHealth, draHealthAlpha} {
			desc := drahealth.DRAResourceHealth_ServiceDesc
			desc.ServiceName = name
			server.RegisterService(&desc, f.dra)
		}
	default:
		v1beta1.RegisterExampleServer(server, v1beta1.UnimplementedExampleServer{})
	}
	h := health.NewServer()
	h.SetServingStatus("", f.health)
	if f.unready.Load() > 0 {
		time.AfterFunc(300*time.Millisecond, func() { h.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING) })
	}
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
	return &csi.GetPluginInfoResponse{Name: f.pluginID, VendorVersion: "1", Manifest: f.manifest}, nil
}

func (f *fake) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if f.unready.Add(-1) >= 0 {
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	}
	return &csi.ProbeResponse{}, nil
}

func (f *fake) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	if f.nodeOnly {
		return &csi.GetPluginCapabilitiesResponse{}, nil
	}
	answer := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_OFFLINE},
	}}}}
	for _, service := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE,
	} {
		if f.hides != service.String() {
			answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
				Service: &csi.PluginCapability_Service{Type: service},
			}})
		}
	}
	return answer, nil
}

func (f *fake) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{}, nil
}

func (f *fake) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_STATS},
	}}}}, nil
}

func (f *fake) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: f.capacity}, nil
}

func (f *fake) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: f.nodeID, AccessibleTopology: &csi.Topology{Segments: f.topology}}, nil
}

func (f *fake) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, rpc := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES, csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	} {
		if f.hides != rpc.String() {
			answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
				Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc},
			}})
		}
	}
	return answer, nil
}

func (f *fake) GetDevicePluginOptions(context.Context, *deviceapi.Empty) (*deviceapi.DevicePluginOptions, error) {
	return &deviceapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, nil
}

func (f *fake) GetPreferredAllocation(
	_ context.Context, request *deviceapi.PreferredAllocationRequest,
) (*deviceapi.PreferredAllocationResponse, error) {
	answer := &deviceapi.PreferredAllocationResponse{}
	for _, c := range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses,
			&deviceapi.ContainerPreferredAllocationResponse{DeviceIDs: f.prefers(c.AvailableDeviceIDs)})
	}
	return answer, nil
}

func (f *fake) Allocate(_ context.Context, request *deviceapi.AllocateRequest) (*deviceapi.AllocateResponse, error) {
	answer := &deviceapi.AllocateResponse{}
	for _, c := range request.ContainerRequests {
		if c.DevicesIds[0] != "d" {
			if f.devBroke == "DEV008" {
				f.server.Stop()
			}
			return nil, status.Error(codes.FailedPrecondition, "it is not available")
		}
		if f.devBroke != "DEV007" {
			answer.ContainerResponses = append(answer.ContainerResponses, &deviceapi.ContainerAllocateResponse{})
		}
	}
	return answer, nil
}

func (f *fake) PreStartContainer(context.Context, *deviceapi.PreStartContainerRequest) (*deviceapi.PreStartContainerResponse, error) {
	if f.devBroke == "DEV009" {
		return nil, status.Error(codes.Unimplemented, "what for?")
	}
	return &deviceapi.PreStartContainerResponse{}, nil
}

func (f *fake) ListAndWatch(_ *deviceapi.Empty, stream grpc.ServerStreamingServer[deviceapi.ListAndWatchResponse]) error {
	f.mu.Lock()
	f.lists--
	silent := f.lists == -1
	if silent {
		f.lists = 0 // forever
	}
	f.mu.Unlock()
	if silent {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	if err := stream.Send(&deviceapi.ListAndWatchResponse{Devices: f.devices}); err != nil || f.hangUp {
		return err
	}
	if f.later != nil {
		if err := stream.Send(&deviceapi.ListAndWatchResponse{Devices: f.later}); err != nil {
			return err
		}
	}
	return f.awaitChange(stream)
}

// awaitChange sends another list when the file appears, and returns when the stream ends.
func (f *fake) awaitChange(stream grpc.ServerStreamingServer[deviceapi.ListAndWatchResponse]) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for told := f.change == ""; ; {
		select {
		case <-look.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if _, err := os.Lstat(f.change); err == nil && !told {
			told = true
			if err := stream.Send(&deviceapi.ListAndWatchResponse{Devices: f.devices[:1]}); err != nil {
				return err
			}
		}
	}
}

// fakeListener calls conns of the fake for each connection.
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

// sniffer calls seen with the first bytes read from a connection, and gone when the connection is closed.
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

// closedWindow is a SETTINGS frame with a window of zero.
var closedWindow = []byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0}

// onClosedWindow calls enter when the peer closes its window, and leave when the connection is closed.
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
