package controlapi

import (
	"context"
	"errors"
	"slices"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/handlers/device"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// maxDeviceRequest is the maximum size of a request in bytes; a request may name many devices.
const maxDeviceRequest = 1 << 20

// askDevices returns the answer of the device handler.
func askDevices[A any](ctx context.Context, c service, do func(h *device.Handler) (*A, error)) (*A, error) {
	for _, h := range c.Handlers.All() {
		if h, ok := h.(*device.Handler); ok {
			answer, err := do(h)
			if err != nil {
				return nil, failure(ctx, err)
			}
			return answer, nil
		}
	}
	return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the daemon does not manage devices: "+
		"run it with --handler DevicePlugin=device, or with handlers: {DevicePlugin: device} in its configuration"))
}

func (c service) ListDevices(ctx context.Context, request *patchbayv1.ListDevicesRequest) (*patchbayv1.ListDevicesResponse, error) {
	return askDevices(ctx, c, func(h *device.Handler) (*patchbayv1.ListDevicesResponse, error) {
		response := &patchbayv1.ListDevicesResponse{}
		devices, allocations := h.Snapshot()
		for _, d := range devices {
			if anyOf(request.GetResources(), d.Resource) {
				response.Devices = append(response.Devices, &patchbayv1.Device{
					Resource: d.Resource, Id: untrusted.Valid(d.ID), Health: string(d.Health), NumaNodes: d.NUMANodes,
					Owner: untrusted.Valid(d.Owner),
				})
			}
		}
		for _, a := range allocations {
			if anyOf(request.GetResources(), a.Resource) {
				response.Allocations = append(response.Allocations, allocationMessage(a))
			}
		}
		return response, nil
	})
}

func (c service) AllocateDevices(
	ctx context.Context, m *patchbayv1.AllocateDevicesRequest,
) (*patchbayv1.AllocateDevicesResponse, error) {
	request := device.Request{Resource: m.GetResource(), Owner: m.GetOwner(), Count: int(m.GetCount()), Devices: m.GetDevices()}
	return askDevices(ctx, c, func(h *device.Handler) (*patchbayv1.AllocateDevicesResponse, error) {
		a, err := h.Allocate(ctx, request)
		return &patchbayv1.AllocateDevicesResponse{Allocation: allocationMessage(a)}, err
	})
}

func (c service) ReleaseDevices(
	ctx context.Context, m *patchbayv1.ReleaseDevicesRequest,
) (*patchbayv1.ReleaseDevicesResponse, error) {
	return askDevices(ctx, c, func(h *device.Handler) (*patchbayv1.ReleaseDevicesResponse, error) {
		a, err := h.Release(ctx, m.GetResource(), m.GetOwner())
		return &patchbayv1.ReleaseDevicesResponse{Allocation: allocationMessage(a)}, err
	})
}

func (c service) GetPreferredDevices(
	ctx context.Context, m *patchbayv1.GetPreferredDevicesRequest,
) (*patchbayv1.GetPreferredDevicesResponse, error) {
	request := device.Request{Resource: m.GetResource(), Count: int(m.GetCount()), Devices: m.GetDevices()}
	return askDevices(ctx, c, func(h *device.Handler) (*patchbayv1.GetPreferredDevicesResponse, error) {
		devices, err := h.Preferred(ctx, request)
		return &patchbayv1.GetPreferredDevicesResponse{Devices: validAll(devices)}, err
	})
}

func allocationMessage(a device.Allocation) *patchbayv1.DeviceAllocation {
	answer := &patchbayv1.DeviceAnswer{
		Envs: validMap(a.Answer.Envs), Annotations: validMap(a.Answer.Annotations), CdiDevices: validAll(a.Answer.CDIDevices),
	}
	for _, m := range a.Answer.Mounts {
		answer.Mounts = append(answer.Mounts, &patchbayv1.DeviceMount{
			ContainerPath: untrusted.Valid(m.ContainerPath), HostPath: untrusted.Valid(m.HostPath), ReadOnly: m.ReadOnly,
		})
	}
	for _, n := range a.Answer.Devices {
		answer.Devices = append(answer.Devices, &patchbayv1.DeviceNode{
			ContainerPath: untrusted.Valid(n.ContainerPath), HostPath: untrusted.Valid(n.HostPath),
			Permissions: untrusted.Valid(n.Permissions),
		})
	}
	return &patchbayv1.DeviceAllocation{
		Resource: a.Resource, Owner: untrusted.Valid(a.Owner), Devices: validAll(slices.Clone(a.Devices)), Time: timestamp(a.Time),
		Answer: answer,
	}
}
