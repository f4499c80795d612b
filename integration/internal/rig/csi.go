package rig

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// CSI returns what makes a plugin a CSI driver for a node; see [Serve].
func CSI(name, version string) func(*grpc.Server) {
	return func(server *grpc.Server) {
		d := driver{name: name, version: version}
		csipb.RegisterIdentityServer(server, d)
		csipb.RegisterNodeServer(server, d)
	}
}

type driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedNodeServer

	name, version string
}

// GetPluginInfo implements the identity service.
func (d driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.name, VendorVersion: d.version}, nil
}

// GetPluginCapabilities implements the identity service.
func (driver) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (*csipb.GetPluginCapabilitiesResponse, error) {
	return &csipb.GetPluginCapabilitiesResponse{}, nil
}

// NodeGetInfo implements the node service.
func (driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: "soak"}, nil
}
