package dra

import (
	"context"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// Timeouts returns the timeout for calls to a plugin, by its type and its name; nil for the default of 45 s. It is the form of
// ClientTimeout in the configuration of a patchbay.Runtime. It must be safe for concurrent use, and may be nil.
type Timeouts func(pluginType, pluginName string) *time.Duration

// Dispensers returns the registry's options with which DispensePlugin hands out a DRAPluginClient of k8s.io/kubelet/pkg/apis/dra/v1 for
// the plugin type DRAPlugin, on the connection that all callers of a plugin share; see [Dispenser].
func Dispensers(timeouts Timeouts) []dynamicplugins.Option {
	return []dynamicplugins.Option{dynamicplugins.WithConnDispenser(registerapi.DRAPlugin, Dispenser(timeouts))}
}

// Dispenser makes clients of v1 for drivers of v1 and of v1beta1. The timeout of a driver bounds every call of them. They repeat nothing
// and check nothing, and do not keep calls for one claim apart: that is what [Handler] does.
func Dispenser(timeouts Timeouts) dynamicplugins.ConnDispenser {
	return func(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
		bounded := boundedConn{ClientConnInterface: conn, timeouts: timeouts, name: info.Name}
		first, second := newClient(serviceV1, bounded), newClient(serviceV1beta1, bounded)
		if info.Options[KeyService] == serviceV1beta1 {
			first, second = second, first
		}
		return eitherClient{first, second}, nil
	}
}

// boundedConn ends unary calls with the timeout of a driver.
type boundedConn struct {
	grpc.ClientConnInterface
	timeouts Timeouts
	name     string
}

// Invoke implements grpc.ClientConnInterface.
func (c boundedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	timeout := defaultCallTimeout
	if c.timeouts != nil {
		if configured := c.timeouts(registerapi.DRAPlugin, c.name); configured != nil && *configured > 0 {
			timeout = *configured
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}
