// Package example is what the host and the plugin of the contestant "go-plugin" share: the handshake, and the example service.
package example

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// Name is the name of the service in [Plugins].
const Name = "example"

// Handshake is what the host and the plugin must agree on.
var Handshake = plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "PATCHBAY_BENCH_COOKIE", MagicCookieValue: "bench"}

// Plugins are the services.
func Plugins() map[string]plugin.Plugin { return map[string]plugin.Plugin{Name: grpcPlugin{}} }

type grpcPlugin struct{ plugin.NetRPCUnsupportedPlugin }

// GRPCServer implements [plugin.GRPCPlugin].
func (grpcPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	v1beta1.RegisterExampleServer(s, server{})
	return nil
}

// GRPCClient implements [plugin.GRPCPlugin].
func (grpcPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return v1beta1.NewExampleClient(conn), nil
}

type server struct {
	v1beta1.UnimplementedExampleServer
}

// GetExampleInfo implements [v1beta1.ExampleServer].
func (server) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{}, nil
}
