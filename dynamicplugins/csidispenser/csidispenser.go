// Package csidispenser makes clients of CSI plugins: with its dispensers, DispensePlugin hands out a csi.NodeClient for the plugin type
// csi-node and a csi.ControllerClient for csi-controller, on the connection that all callers of the plugin share.
//
// It is a package of its own so that only hosts of CSI plugins depend on the CSI protocol. It neither registers plugins nor asks them
// anything.
package csidispenser

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// Options returns the registry's options for the CSI dispensers.
func Options() []dynamicplugins.Option {
	return []dynamicplugins.Option{
		dynamicplugins.WithConnDispenser(dynamicplugins.PluginTypeCSINode, Node),
		dynamicplugins.WithConnDispenser(dynamicplugins.PluginTypeCSIController, Controller),
	}
}

// Node is a [dynamicplugins.ConnDispenser] of csi.NodeClient. Hosts whose plugins are registered under another type, for example the
// announced type CSIPlugin, give it to dynamicplugins.WithConnDispenser for that type.
func Node(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
	return csi.NewNodeClient(conn), nil
}

// Controller is a [dynamicplugins.ConnDispenser] of csi.ControllerClient.
func Controller(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
	return csi.NewControllerClient(conn), nil
}
