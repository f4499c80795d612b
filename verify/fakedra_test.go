//go:build linux

package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"google.golang.org/grpc"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// sideBySide is a driver that can run as several instances at the same time.
const sideBySide = "side by side"

// fakeClaims are the claims that a fakeDRA knows. It cannot prepare the last one.
var fakeClaims = []string{"default/one/1", "default/two/2", "default/bad/bad"}

// fakeDRA is a driver that conforms, except for the rule that it breaks. It has no state: the devices of a claim depend only on the claim.
type fakeDRA struct {
	drav1.UnimplementedDRAPluginServer
	drahealth.UnimplementedDRAResourceHealthServer

	broken string

	mu     sync.Mutex
	calls  int
	undone map[string]bool
}

func (d *fakeDRA) NodePrepareResources(_ context.Context, request *drav1.NodePrepareResourcesRequest) (
	*drav1.NodePrepareResourcesResponse, error,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	answer := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, claim := range request.Claims {
		delete(d.undone, claim.Uid)
		name := "d" + claim.Uid
		switch d.broken {
		case "DRA004":
			name += fmt.Sprint("-", d.calls)
		case "DRA007":
			name += fmt.Sprint("-", os.Getpid())
		}
		device := &drav1.Device{PoolName: "node", DeviceName: name, CdiDeviceIds: []string{"example.com/gpu=" + name}}
		if d.broken == "DRA005" {
			device.CdiDeviceIds = []string{name}
		}
		entry := &drav1.NodePrepareResourceResponse{Devices: []*drav1.Device{device}}
		if claim.Uid == "bad" {
			entry = &drav1.NodePrepareResourceResponse{Error: "it is broken"}
		}
		if claim.Uid != "bad" && d.broken == "DRA008" && len(request.Claims) > 2 {
			entry = &drav1.NodePrepareResourceResponse{Error: "another one is broken"}
		}
		answer.Claims[claim.Uid] = entry
	}
	return answer, nil
}

func (d *fakeDRA) NodeUnprepareResources(_ context.Context, request *drav1.NodeUnprepareResourcesRequest) (
	*drav1.NodeUnprepareResourcesResponse, error,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.undone == nil {
		d.undone = map[string]bool{}
	}
	answer := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, claim := range request.Claims {
		entry := &drav1.NodeUnprepareResourceResponse{}
		if d.broken == "DRA006" && d.undone[claim.Uid] {
			entry.Error = "it is not prepared"
		}
		d.undone[claim.Uid] = true
		answer.Claims[claim.Uid] = entry
	}
	if d.broken == "DRA003" {
		answer.Claims["0"] = &drav1.NodeUnprepareResourceResponse{}
	}
	return answer, nil
}

func (d *fakeDRA) NodeWatchResources(_ *drahealth.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[drahealth.NodeWatchResourcesResponse],
) error {
	device := &drahealth.DeviceIdentifier{PoolName: "node", DeviceName: "d1"}
	list := &drahealth.NodeWatchResourcesResponse{Devices: []*drahealth.DeviceHealth{{Device: device, Health: drahealth.HealthStatus_HEALTHY}}}
	if err := stream.Send(list); err != nil {
		return err
	}
	if d.broken == "DRA010" {
		return errors.New("that is all there is to say")
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}
