package goplugin

import (
	"context"
	"sync"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// registration answers in the place of a plugin.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

// GetInfo implements registerapi.RegistrationServer.
func (r registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer. A plugin of go-plugin has no ear for it, and its host is told anyway.
func (registration) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// health passes the question for the health on to the plugin.
type health struct {
	healthpb.UnimplementedHealthServer
	plugin healthpb.HealthClient
}

// Check implements healthpb.HealthServer. The plugin as a whole has a name in go-plugin.
func (h health) Check(ctx context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if request.GetService() == "" {
		request = &healthpb.HealthCheckRequest{Service: goplugin.GRPCServiceName}
	}
	return h.plugin.Check(ctx, request)
}

// serve makes a plugin known at path, where nobody but this user may ask, until stop is called.
func serve(path string, info *registerapi.PluginInfo, plugin grpc.ClientConnInterface) (stop func(), err error) {
	listener, err := sock.Listen(path, 0o600)
	if err != nil {
		return func() {}, err
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, registration{info: info})
	healthpb.RegisterHealthServer(server, health{plugin: healthpb.NewHealthClient(plugin)})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ends with Stop, and with nothing else that could be told
	return func() {
		server.Stop()
		serving.Wait()
	}, nil
}
