package main

import (
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

// healthDriver is a driver that also says that its device is healthy.
type healthDriver struct {
	*driver
	drahealth.UnimplementedDRAResourceHealthServer
}

// NodeWatchResources says how the device is once, and again only when it is asked again.
func (d *healthDriver) NodeWatchResources(
	_ *drahealth.NodeWatchResourcesRequest, stream drahealth.DRAResourceHealth_NodeWatchResourcesServer,
) error {
	err := stream.Send(&drahealth.NodeWatchResourcesResponse{Devices: []*drahealth.DeviceHealth{{
		Device: &drahealth.DeviceIdentifier{PoolName: "node-1", DeviceName: d.device},
		Health: drahealth.HealthStatus_HEALTHY, Message: "fine", HealthCheckTimeoutSeconds: 600,
	}}})
	if err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}
