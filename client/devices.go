package client

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

var (
	// ErrDeviceNotFound is wrapped by the error of a call about an unknown resource, device or allocation.
	ErrDeviceNotFound = errors.New("no such device or allocation is known")
	// ErrAllocated is wrapped by the error of [Client.AllocateDevices] if the owner already has an allocation from a different request.
	ErrAllocated = errors.New("the owner has devices of that resource already")
)

// ListDevices returns the devices of the resources, or all devices if there are none, ordered by resource and ID, and their allocations.
func (c *Client) ListDevices(ctx context.Context, resources ...string) (*patchbayv1.ListDevicesResponse, error) {
	request := &patchbayv1.ListDevicesRequest{Resources: resources}
	return ask(ctx, c.explainDevices, "list the devices", c.devices.ListDevices, request)
}

// AllocateDevices allocates devices to an owner until ReleaseDevices; allocations survive restarts. Repeating a request returns the same
// allocation, so a caller without an answer can retry. A different request for the same owner fails with [ErrAllocated].
func (c *Client) AllocateDevices(ctx context.Context, r *patchbayv1.AllocateDevicesRequest) (*patchbayv1.DeviceAllocation, error) {
	task := "allocate " + r.GetResource() + " for " + r.GetOwner()
	answer, err := ask(ctx, c.explainDevices, task, c.devices.AllocateDevices, r)
	return answer.GetAllocation(), err
}

// ReleaseDevices ends an allocation and returns it. The error for an unknown allocation is [ErrDeviceNotFound].
func (c *Client) ReleaseDevices(ctx context.Context, resource, owner string) (*patchbayv1.DeviceAllocation, error) {
	request := &patchbayv1.ReleaseDevicesRequest{Resource: resource, Owner: owner}
	answer, err := ask(ctx, c.explainDevices, "release "+resource+" of "+owner, c.devices.ReleaseDevices, request)
	return answer.GetAllocation(), err
}

// PreferredDevices returns which of the free devices the plugin prefers; none if it has no preference.
func (c *Client) PreferredDevices(ctx context.Context, r *patchbayv1.GetPreferredDevicesRequest) ([]string, error) {
	task := "find out which devices of " + r.GetResource() + " are preferred"
	answer, err := ask(ctx, c.explainDevices, task, c.devices.GetPreferredDevices, r)
	return answer.GetDevices(), err
}

// explainDevices is like explain, except for codes with another meaning in DeviceService.
func (c *Client) explainDevices(task string, err error) error {
	meaning := map[connect.Code]error{connect.CodeNotFound: ErrDeviceNotFound, connect.CodeAlreadyExists: ErrAllocated}
	if rpcError, ok := errors.AsType[*connect.Error](err); ok && connect.IsWireError(err) && meaning[rpcError.Code()] != nil {
		return fmt.Errorf("cannot %s: %w: %w", task, meaning[rpcError.Code()], rpcError.Unwrap())
	}
	return c.explain(task, err)
}
