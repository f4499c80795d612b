package goplugin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Connections knows how the plugins are reached that run. Its zero value has none; its methods are safe for concurrent use.
type Connections struct {
	mu sync.Mutex
	at map[string]target // by endpoint
}

// target is how a plugin is reached. Without a tls it serves in the clear.
type target struct {
	dial dialer
	tls  *tls.Config
}

type dialer func(context.Context) (net.Conn, error)

func (c *Connections) add(endpoint string, dial dialer, config *tls.Config) {
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"h2"} // without which servers refuse
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[string]target{}
	}
	c.at[endpoint] = target{dial, config}
}

func (c *Connections) get(endpoint string) (target, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to, known := c.at[endpoint]
	return to, known
}

// DialOptions returns the options for a connection to an endpoint: a plugin of go-plugin may send and take messages of any size, as with
// the library's own host. It is meant for dynamicplugins.WithDialOptionsFor.
func (c *Connections) DialOptions(endpoint string) []grpc.DialOption {
	if _, known := c.get(endpoint); !known {
		return nil
	}
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32))}
}

func (c *Connections) remove(endpoint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.at, endpoint)
}

// Dial connects to an endpoint: to a running plugin of go-plugin as that wants it, and to everything else as the registry does by default.
// It is meant for dynamicplugins.WithDialer.
func (c *Connections) Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	to, known := c.get(endpoint)
	if !known {
		return sock.DialKnown(ctx, endpoint)
	}
	raw, err := to.dial(ctx)
	if err != nil || to.tls == nil {
		return raw, err
	}
	conn := tls.Client(raw, to.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot connect to %s with TLS: %w", endpoint, err), raw.Close())
	}
	return conn, nil
}

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
