package csi

import (
	"context"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// Timeouts returns the timeout for calls to a plugin, by its announced type and its name; nil for none. It is the form of ClientTimeout in
// the configuration of a patchbay.Runtime. It must be safe for concurrent use, and may be nil: then there are none.
type Timeouts func(pluginType, pluginName string) *time.Duration

// Dispensers returns the registry's options with which DispensePlugin hands out a csi.NodeClient for the plugin type csi-node, a
// csi.ControllerClient for csi-controller and a csi.IdentityClient for CSIPlugin, on the connection that all callers of a plugin share.
//
// As in the kubelet, the timeout of a driver bounds every unary call of these clients: the call ends with it, or with the caller's context
// if that ends earlier. It is looked up at each call, under the type that the driver announced (CSIPlugin) and its name. Streams are not
// bounded.
func Dispensers(timeouts Timeouts) []dynamicplugins.Option {
	return []dynamicplugins.Option{
		dynamicplugins.WithConnDispenser(dynamicplugins.PluginTypeCSINode, NodeDispenser(timeouts)),
		dynamicplugins.WithConnDispenser(dynamicplugins.PluginTypeCSIController, ControllerDispenser(timeouts)),
		dynamicplugins.WithConnDispenser(registerapi.CSIPlugin, IdentityDispenser(timeouts)),
	}
}

// NodeDispenser makes csi.NodeClient. Hosts whose drivers are registered under another type than csi-node give it to
// [dynamicplugins.WithConnDispenser] for that type.
func NodeDispenser(timeouts Timeouts) dynamicplugins.ConnDispenser {
	return func(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
		return csipb.NewNodeClient(Bounded(info, conn, timeouts)), nil
	}
}

// ControllerDispenser makes csi.ControllerClient, as [NodeDispenser] does csi.NodeClient.
func ControllerDispenser(timeouts Timeouts) dynamicplugins.ConnDispenser {
	return func(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
		return csipb.NewControllerClient(Bounded(info, conn, timeouts)), nil
	}
}

// IdentityDispenser makes csi.IdentityClient, as [NodeDispenser] does csi.NodeClient.
func IdentityDispenser(timeouts Timeouts) dynamicplugins.ConnDispenser {
	return func(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
		return csipb.NewIdentityClient(Bounded(info, conn, timeouts)), nil
	}
}

// Bounded returns conn with the timeout of a plugin for unary calls; see [Dispensers]. It is for clients of further services of a driver,
// such as csi.GroupControllerClient.
func Bounded(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface, timeouts Timeouts) grpc.ClientConnInterface {
	if timeouts == nil {
		return conn
	}
	return &boundedConn{ClientConnInterface: conn, timeouts: timeouts, ptype: announcedType(info), name: info.Name}
}

// optionRoleOf is where the pipeline keeps the announced type of an instance, in its entries under its roles.
const optionRoleOf = "patchbay.dev/role-of"

// announcedType returns the type that a driver announced when it registered.
func announcedType(info *dynamicplugins.PluginInfo) string {
	if announced := info.Options[optionRoleOf]; announced != "" {
		return announced
	}
	switch info.Type {
	case dynamicplugins.PluginTypeCSINode, dynamicplugins.PluginTypeCSIController:
		return registerapi.CSIPlugin // The host put it into the registry under its role alone.
	}
	return info.Type
}

type boundedConn struct {
	grpc.ClientConnInterface
	timeouts    Timeouts
	ptype, name string
}

// Invoke implements grpc.ClientConnInterface.
func (c *boundedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if timeout := c.timeouts(c.ptype, c.name); timeout != nil && *timeout > 0 {
		bounded, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		ctx = bounded
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}
