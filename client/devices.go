package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

var (
	// ErrDeviceNotFound is wrapped by the error of a call about an unknown resource, device or allocation.
	ErrDeviceNotFound = errors.New("no such device or allocation is known")
	// ErrAllocated is wrapped by the error of [Client.AllocateDevices] if the owner already has an allocation from a different request.
	ErrAllocated = errors.New("the owner has devices of that resource already")
)

// Device is one device of a device plugin.
type Device struct {
	// Resource is the name of the plugin, for example example.com/gpu, and ID the plugin's ID for the device.
	Resource string `json:"resource"`
	ID       string `json:"id"`
	// Health is "healthy", "unhealthy", "unavailable" while the plugin is away, or "missing" if the device is allocated but no longer listed.
	Health    string  `json:"health"`
	NUMANodes []int64 `json:"numaNodes"`
	// Owner has the device; empty if it is free.
	Owner string `json:"owner"`
}

// DeviceAllocation holds the devices of one resource that are allocated to one owner.
type DeviceAllocation struct {
	Resource string   `json:"resource"`
	Owner    string   `json:"owner"`
	Devices  []string `json:"devices"`
	// Time is when they were allocated.
	Time   *time.Time   `json:"time"`
	Answer DeviceAnswer `json:"answer"`
}

// DeviceAnswer is the plugin's answer: what to set up for the owner of devices.
type DeviceAnswer struct {
	Envs        map[string]string `json:"envs"`
	Mounts      []DeviceMount     `json:"mounts"`
	Devices     []DeviceNode      `json:"devices"`
	Annotations map[string]string `json:"annotations"`
	// CDIDevices are names, for example vendor.com/gpu=gpudevice1.
	CDIDevices []string `json:"cdiDevices"`
}

// DeviceMount is a path of the host to mount.
type DeviceMount struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	ReadOnly      bool   `json:"readOnly"`
}

// DeviceNode is a device node of the host. Its permissions are any of r, w and m.
type DeviceNode struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	Permissions   string `json:"permissions"`
}

// DeviceRequest says which devices to allocate, and to whom.
type DeviceRequest struct {
	Resource string
	// Owner is any name of the caller's choice.
	Owner string
	// Count is how many devices; 0 for as many as there are in Devices, or else 1.
	Count uint32
	// Devices must be among them.
	Devices []string
}

// DeviceListing is what [Client.ListDevices] returns: one consistent view.
type DeviceListing struct {
	Devices     []Device
	Allocations []DeviceAllocation
}

// ListDevices returns the devices of some resources, or of all if none is named, ordered by resource and ID, and their allocations.
func (c *Client) ListDevices(ctx context.Context, resources ...string) (DeviceListing, error) {
	request := &patchbayv1.ListDevicesRequest{Resources: resources}
	answer, err := ask(ctx, c.explainDevices, "list the devices", c.devices.ListDevices, request)
	return DeviceListing{Devices: each(answer.GetDevices(), deviceOf), Allocations: each(answer.GetAllocations(), allocationOf)}, err
}

// AllocateDevices gives devices to an owner, durably, until ReleaseDevices. Repeating a request returns the same allocation, so a caller
// that got no answer can retry; a different request for the same owner fails with [ErrAllocated].
func (c *Client) AllocateDevices(ctx context.Context, r DeviceRequest) (DeviceAllocation, error) {
	request := &patchbayv1.AllocateDevicesRequest{Resource: r.Resource, Owner: r.Owner, Count: r.Count, Devices: r.Devices}
	answer, err := ask(ctx, c.explainDevices, "allocate "+r.Resource+" for "+r.Owner, c.devices.AllocateDevices, request)
	return allocationOf(answer.GetAllocation()), err
}

// ReleaseDevices ends an allocation and returns it. For an unknown one the error is [ErrDeviceNotFound].
func (c *Client) ReleaseDevices(ctx context.Context, resource, owner string) (DeviceAllocation, error) {
	request := &patchbayv1.ReleaseDevicesRequest{Resource: resource, Owner: owner}
	answer, err := ask(ctx, c.explainDevices, "release "+resource+" of "+owner, c.devices.ReleaseDevices, request)
	return allocationOf(answer.GetAllocation()), err
}

// PreferredDevices returns which of the free devices the plugin would choose; none if it has no preference. The owner does not matter.
func (c *Client) PreferredDevices(ctx context.Context, r DeviceRequest) ([]string, error) {
	request := &patchbayv1.GetPreferredDevicesRequest{Resource: r.Resource, Count: r.Count, Devices: r.Devices}
	task := "find out which devices of " + r.Resource + " are preferred"
	answer, err := ask(ctx, c.explainDevices, task, c.devices.GetPreferredDevices, request)
	return answer.GetDevices(), err
}

// explainDevices is explain for the codes that mean something else here.
func (c *Client) explainDevices(task string, err error) error {
	meaning := map[connect.Code]error{connect.CodeNotFound: ErrDeviceNotFound, connect.CodeAlreadyExists: ErrAllocated}
	if rpcError, ok := errors.AsType[*connect.Error](err); ok && connect.IsWireError(err) && meaning[rpcError.Code()] != nil {
		return fmt.Errorf("cannot %s: %w: %w", task, meaning[rpcError.Code()], rpcError.Unwrap())
	}
	return c.explain(task, err)
}

func deviceOf(d *patchbayv1.Device) Device {
	return Device{
		Resource: d.GetResource(), ID: d.GetId(), Health: d.GetHealth(), NUMANodes: present(d.GetNumaNodes()), Owner: d.GetOwner(),
	}
}

func allocationOf(a *patchbayv1.DeviceAllocation) DeviceAllocation {
	answer := a.GetAnswer()
	return DeviceAllocation{
		Resource: a.GetResource(), Owner: a.GetOwner(), Devices: present(a.GetDevices()), Time: timeOf(a.GetTime()),
		Answer: DeviceAnswer{
			Envs: presentMap(answer.GetEnvs()), Annotations: presentMap(answer.GetAnnotations()), CDIDevices: present(answer.GetCdiDevices()),
			Mounts: each(answer.GetMounts(), func(m *patchbayv1.DeviceMount) DeviceMount {
				return DeviceMount{m.GetContainerPath(), m.GetHostPath(), m.GetReadOnly()}
			}),
			Devices: each(answer.GetDevices(), func(d *patchbayv1.DeviceNode) DeviceNode {
				return DeviceNode{d.GetContainerPath(), d.GetHostPath(), d.GetPermissions()}
			}),
		},
	}
}
