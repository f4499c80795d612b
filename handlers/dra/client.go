package dra

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// The methods of the service in version v1beta1. Its messages are those of v1 on the wire, except that a device has no share ID there.
const (
	prepareV1beta1   = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources"
	unprepareV1beta1 = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"
)

// clientV1beta1 calls a driver of v1beta1 with the messages of v1.
type clientV1beta1 struct{ conn grpc.ClientConnInterface }

func (c clientV1beta1) NodePrepareResources(
	ctx context.Context, request *drav1.NodePrepareResourcesRequest, opts ...grpc.CallOption,
) (*drav1.NodePrepareResourcesResponse, error) {
	response := new(drav1.NodePrepareResourcesResponse)
	if err := c.conn.Invoke(ctx, prepareV1beta1, request, response, staticMethod(opts)...); err != nil {
		return nil, err
	}
	for _, claim := range response.GetClaims() {
		for _, device := range claim.GetDevices() {
			device.ShareId = nil // a field that v1beta1 does not have
		}
	}
	return response, nil
}

func (c clientV1beta1) NodeUnprepareResources(
	ctx context.Context, request *drav1.NodeUnprepareResourcesRequest, opts ...grpc.CallOption,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	response := new(drav1.NodeUnprepareResourcesResponse)
	if err := c.conn.Invoke(ctx, unprepareV1beta1, request, response, staticMethod(opts)...); err != nil {
		return nil, err
	}
	return response, nil
}

func staticMethod(opts []grpc.CallOption) []grpc.CallOption {
	return append([]grpc.CallOption{grpc.StaticMethod()}, opts...)
}

// newClient returns a client for a service.
func newClient(service string, conn grpc.ClientConnInterface) drav1.DRAPluginClient {
	if service == serviceV1beta1 {
		return clientV1beta1{conn}
	}
	return drav1.NewDRAPluginClient(conn)
}

// eitherClient calls the service of one version, and that of the other where the first is not implemented: what is behind a shared
// connection may have been replaced by a driver of another version.
type eitherClient struct{ first, second drav1.DRAPluginClient }

func (c eitherClient) NodePrepareResources(
	ctx context.Context, request *drav1.NodePrepareResourcesRequest, opts ...grpc.CallOption,
) (*drav1.NodePrepareResourcesResponse, error) {
	response, err := c.first.NodePrepareResources(ctx, request, opts...)
	if status.Code(err) == codes.Unimplemented {
		return c.second.NodePrepareResources(ctx, request, opts...)
	}
	return response, err
}

func (c eitherClient) NodeUnprepareResources(
	ctx context.Context, request *drav1.NodeUnprepareResourcesRequest, opts ...grpc.CallOption,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	response, err := c.first.NodeUnprepareResources(ctx, request, opts...)
	if status.Code(err) == codes.Unimplemented {
		return c.second.NodeUnprepareResources(ctx, request, opts...)
	}
	return response, err
}
