package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
)

var (
	// ErrDeviceNotFound is wrapped by the error of a call about a resource, a device or an allocation that is not known.
	ErrDeviceNotFound = errors.New("no such device or allocation is known")
	// ErrAllocated is wrapped by the error of [Client.AllocateDevices] if the owner has an allocation that was asked for otherwise.
	ErrAllocated = errors.New("the owner has devices of that resource already")
)

// Device is one device of a device plugin.
type Device struct {
	// Resource is the name of the plugin, for example example.com/gpu, and ID what that calls the device.
	Resource string `json:"resource"`
	ID       string `json:"id"`
	// Health is "healthy", "unhealthy", "unavailable" while the plugin is away, or "missing" if the device is allocated and not listed any
	// more.
	Health    string  `json:"health"`
	NUMANodes []int64 `json:"numaNodes"`
	// Owner has the device; empty if it is free.
	Owner string `json:"owner"`
}

// DeviceAllocation is the devices of one resource that an owner has.
type DeviceAllocation struct {
	Resource string   `json:"resource"`
	Owner    string   `json:"owner"`
	Devices  []string `json:"devices"`
	// Time is when they were allocated.
	Time   *time.Time   `json:"time"`
	Answer DeviceAnswer `json:"answer"`
}

// DeviceAnswer is what is to be done for the owner of devices, as the plugin says.
type DeviceAnswer struct {
	Envs        map[string]string `json:"envs"`
	Mounts      []DeviceMount     `json:"mounts"`
	Devices     []DeviceNode      `json:"devices"`
	Annotations map[string]string `json:"annotations"`
	// CDIDevices are names, for example vendor.com/gpu=gpudevice1.
	CDIDevices []string `json:"cdiDevices"`
}

// DeviceMount is a path of the host to be mounted.
type DeviceMount struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	ReadOnly      bool   `json:"readOnly"`
}

// DeviceNode is a device node of the host. Its permissions are some of r, w and m.
type DeviceNode struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	Permissions   string `json:"permissions"`
}

// DeviceRequest says which devices are wanted, and for whom.
type DeviceRequest struct {
	Resource string
	// Owner is any name of the caller's choice.
	Owner string
	// Count is how many devices; 0 for as many as there are in Devices, or else 1.
	Count uint32
	// Devices have to be among them.
	Devices []string
}

// DeviceListing is what [Client.ListDevices] returns: what was so at one moment.
type DeviceListing struct {
	Devices     []Device
	Allocations []DeviceAllocation
}

// devices calls the same daemon. It costs nothing to make.
func (c *Client) devices() patchbayv1connect.DeviceServiceClient {
	return patchbayv1connect.NewDeviceServiceClient(&http.Client{Transport: c.transport}, "http://patchbay")
}

// ListDevices returns the devices of some resources, or of all if none is named, ordered by resource and ID, and their allocations.
func (c *Client) ListDevices(ctx context.Context, resources ...string) (DeviceListing, error) {
	response, err := c.devices().ListDevices(ctx, connect.NewRequest(&patchbayv1.ListDevicesRequest{Resources: resources}))
	if err != nil {
		return DeviceListing{}, c.explainDevices("list the devices", err)
	}
	listing := DeviceListing{
		Devices:     make([]Device, len(response.Msg.GetDevices())),
		Allocations: make([]DeviceAllocation, len(response.Msg.GetAllocations())),
	}
	for i, d := range response.Msg.GetDevices() {
		listing.Devices[i] = Device{
			Resource: d.GetResource(), ID: d.GetId(), Health: d.GetHealth(), NUMANodes: present(d.GetNumaNodes()), Owner: d.GetOwner(),
		}
	}
	for i, a := range response.Msg.GetAllocations() {
		listing.Allocations[i] = allocationOf(a)
	}
	return listing, nil
}

// AllocateDevices gives devices to an owner, durably, until ReleaseDevices. The same request again returns the same allocation, so that a
// caller who got no answer can ask again; another one of the same owner is [ErrAllocated].
func (c *Client) AllocateDevices(ctx context.Context, r DeviceRequest) (DeviceAllocation, error) {
	response, err := c.devices().AllocateDevices(ctx, connect.NewRequest(&patchbayv1.AllocateDevicesRequest{
		Resource: r.Resource, Owner: r.Owner, Count: r.Count, Devices: r.Devices,
	}))
	if err != nil {
		return DeviceAllocation{}, c.explainDevices(fmt.Sprintf("allocate %s for %s", r.Resource, r.Owner), err)
	}
	return allocationOf(response.Msg.GetAllocation()), nil
}

// ReleaseDevices ends an allocation and returns it. One that is not known is [ErrDeviceNotFound].
func (c *Client) ReleaseDevices(ctx context.Context, resource, owner string) (DeviceAllocation, error) {
	response, err := c.devices().ReleaseDevices(ctx, connect.NewRequest(&patchbayv1.ReleaseDevicesRequest{Resource: resource, Owner: owner}))
	if err != nil {
		return DeviceAllocation{}, c.explainDevices(fmt.Sprintf("release %s of %s", resource, owner), err)
	}
	return allocationOf(response.Msg.GetAllocation()), nil
}

// PreferredDevices returns which of the free devices the plugin would choose; none if it has no preference. The owner does not matter.
func (c *Client) PreferredDevices(ctx context.Context, r DeviceRequest) ([]string, error) {
	response, err := c.devices().GetPreferredDevices(ctx, connect.NewRequest(&patchbayv1.GetPreferredDevicesRequest{
		Resource: r.Resource, Count: r.Count, Devices: r.Devices,
	}))
	if err != nil {
		return nil, c.explainDevices("find out which devices of "+r.Resource+" are preferred", err)
	}
	return response.Msg.GetDevices(), nil
}

// explainDevices is explain for the codes that mean something else here.
func (c *Client) explainDevices(task string, err error) error {
	var rpcError *connect.Error
	if connect.IsWireError(err) && errors.As(err, &rpcError) {
		switch rpcError.Code() { //nolint:exhaustive // explain knows the others.
		case connect.CodeNotFound:
			return fmt.Errorf("cannot %s: %w: %w", task, ErrDeviceNotFound, rpcError.Unwrap())
		case connect.CodeAlreadyExists:
			return fmt.Errorf("cannot %s: %w: %w", task, ErrAllocated, rpcError.Unwrap())
		}
	}
	return c.explain(task, err)
}

func allocationOf(a *patchbayv1.DeviceAllocation) DeviceAllocation {
	answer := a.GetAnswer()
	allocation := DeviceAllocation{
		Resource: a.GetResource(), Owner: a.GetOwner(), Devices: present(a.GetDevices()), Time: timeOf(a.GetTime()),
		Answer: DeviceAnswer{
			Envs: presentMap(answer.GetEnvs()), Annotations: presentMap(answer.GetAnnotations()), CDIDevices: present(answer.GetCdiDevices()),
			Mounts: make([]DeviceMount, len(answer.GetMounts())), Devices: make([]DeviceNode, len(answer.GetDevices())),
		},
	}
	for i, m := range answer.GetMounts() {
		allocation.Answer.Mounts[i] = DeviceMount{m.GetContainerPath(), m.GetHostPath(), m.GetReadOnly()}
	}
	for i, d := range answer.GetDevices() {
		allocation.Answer.Devices[i] = DeviceNode{d.GetContainerPath(), d.GetHostPath(), d.GetPermissions()}
	}
	return allocation
}

// present returns a list that is an array in JSON, never null.
func present[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// presentMap returns a map that is an object in JSON, never null.
func presentMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
