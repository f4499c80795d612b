package csi

import (
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
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
		withDispenser(dynamicplugins.PluginTypeCSINode, csipb.NewNodeClient, timeouts),
		withDispenser(dynamicplugins.PluginTypeCSIController, csipb.NewControllerClient, timeouts),
		withDispenser(registerapi.CSIPlugin, csipb.NewIdentityClient, timeouts),
	}
}

func withDispenser[Client any](ptype string, newClient func(grpc.ClientConnInterface) Client, timeouts Timeouts) dynamicplugins.Option {
	return dynamicplugins.WithConnDispenser(ptype, func(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
		return newClient(Bounded(info, conn, timeouts)), nil
	})
}

// Bounded returns conn with the timeout of a plugin for unary calls; see [Dispensers]. It is for clients of further services of a driver,
// such as csi.GroupControllerClient, and of drivers that are registered under another type.
func Bounded(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface, timeouts Timeouts) grpc.ClientConnInterface {
	if timeouts == nil {
		return conn
	}
	ptype, name := announcedType(info), info.Name
	return endpoint.Bounded(conn, func() time.Duration { return endpoint.Timeout(timeouts(ptype, name), 0) })
}

func announcedType(info *dynamicplugins.PluginInfo) string {
	if info.IsRole() {
		return info.Instance.Type
	}
	switch info.Type {
	case dynamicplugins.PluginTypeCSINode, dynamicplugins.PluginTypeCSIController:
		return registerapi.CSIPlugin // The host put it into the registry under its role alone.
	}
	return info.Type
}
