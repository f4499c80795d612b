package cli_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// serveGadgets is the program gadgets SOCKET RESOURCE ID..., a device plugin. It registers the older way if there is a kubelet.sock beside
// its socket, and is found otherwise. With SIGHUP its first device becomes unhealthy, and with the next one healthy.
func serveGadgets() {
	socket, resource := os.Args[1], os.Args[2]
	g := &gadgets{resource: resource, change: make(chan os.Signal, 1)}
	for _, id := range os.Args[3:] {
		g.devices = append(g.devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	signal.Notify(g.change, syscall.SIGHUP)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	_ = os.Remove(socket) // left by one that was killed
	listener, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, g)
	registerapi.RegisterRegistrationServer(s, g)
	go func() {
		<-end
		s.Stop()
	}()
	kubelet := filepath.Join(filepath.Dir(socket), "kubelet.sock")
	if _, err := os.Stat(kubelet); err == nil {
		go g.registerOlder(kubelet, filepath.Base(socket))
	}
	if err := s.Serve(listener); err != nil {
		panic(err)
	}
}

type gadgets struct {
	pluginapi.UnimplementedDevicePluginServer
	registerapi.UnimplementedRegistrationServer
	resource string
	devices  []*pluginapi.Device
	change   chan os.Signal
}

// registerOlder registers on kubelet.sock, and again whenever that is a new file.
func (g *gadgets) registerOlder(kubelet, endpoint string) {
	for last := os.FileInfo(nil); ; time.Sleep(100 * time.Millisecond) {
		now, err := os.Stat(kubelet)
		if err != nil || last != nil && os.SameFile(last, now) && last.ModTime().Equal(now.ModTime()) {
			continue
		}
		if g.registerOnce(kubelet, endpoint) == nil {
			last = now
		}
	}
}

func (g *gadgets) registerOnce(kubelet, endpoint string) error {
	conn, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	_, err = pluginapi.NewRegistrationClient(conn).Register(context.Background(), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, ResourceName: g.resource, Endpoint: endpoint,
	})
	fmt.Printf("registered error=%v\n", err)
	_ = conn.Close()
	return err
}

func (g *gadgets) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.DevicePlugin, Name: g.resource, SupportedVersions: []string{pluginapi.Version},
	}, nil
}

func (g *gadgets) NotifyRegistrationStatus(
	_ context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	fmt.Printf("registered=%t error=%q\n", s.GetPluginRegistered(), s.GetError())
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (g *gadgets) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (g *gadgets) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	for {
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: g.devices}); err != nil {
			return err
		}
		select {
		case <-g.change:
			first := &pluginapi.Device{ID: g.devices[0].GetID(), Health: pluginapi.Unhealthy}
			if g.devices[0].GetHealth() == pluginapi.Unhealthy {
				first.Health = pluginapi.Healthy
			}
			g.devices = append([]*pluginapi.Device{first}, g.devices[1:]...)
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (g *gadgets) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	if slices.Contains(ids, "broken") {
		return nil, fmt.Errorf("the gadget is broken")
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs:    map[string]string{"GADGETS": strings.Join(ids, ",") + "\u009b31m"},
		Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gadget", HostPath: "/dev/null", Permissions: "rw"}},
	}}}, nil
}
