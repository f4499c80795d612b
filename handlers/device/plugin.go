package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
)

type devicePlugin struct {
	resource, path string
	timeout        time.Duration // of one call
	conn           *endpoint.Conn
	client         pluginapi.DevicePluginClient
	options        *pluginapi.DevicePluginOptions // set before the plugin is shared; nil for none
	first          chan error                     // gets one value: nil with the first list, or why there is none
	unwatch        func()                         // ends the watch
	unwatched      chan struct{}                  // closed when the watch has ended; nil if there is none

	// Guarded by Handler.mu:
	watched bool              // the list of devices is up to date
	wrong   string            // why it is not, as the log says; empty if it does not
	devices map[string]device // before it is the plugin of a resource
}

func newPlugin(ctx context.Context, resource, path string, timeout time.Duration) (*devicePlugin, error) {
	conn, err := endpoint.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return &devicePlugin{
		resource: resource, path: path, timeout: timeout, conn: conn, client: pluginapi.NewDevicePluginClient(conn),
		first: make(chan error, 1), unwatch: func() {},
	}, nil
}

// askOptions asks the plugin for its options. If it does not implement that, the options of its announcement, if there is one, are used.
func (p *devicePlugin) askOptions(ctx context.Context, a *announcement) error {
	answer, err := endpoint.Call(ctx, p.timeout, "GetDevicePluginOptions", p.client.GetDevicePluginOptions, &pluginapi.Empty{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		if a != nil {
			p.options = a.options
		}
	case err != nil:
		return err
	default:
		p.options = knownOptions(answer)
	}
	return nil
}

// knownOptions returns a copy without unknown fields, which may be as large as the message.
func knownOptions(o *pluginapi.DevicePluginOptions) *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{
		PreStartRequired: o.GetPreStartRequired(), GetPreferredAllocationAvailable: o.GetGetPreferredAllocationAvailable(),
	}
}

// allocate calls Allocate for the devices, and returns what to set up for their owner.
func (p *devicePlugin) allocate(ctx context.Context, devices []string) (Answer, error) {
	response, err := endpoint.Call(ctx, p.timeout, "Allocate", p.client.Allocate, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: devices}},
	})
	if err != nil {
		return Answer{}, err
	}
	if n := len(response.GetContainerResponses()); n != 1 {
		return Answer{}, fmt.Errorf("Allocate: it answered for %d containers and was asked for 1", n)
	}
	answer, err := answerOf(response.GetContainerResponses()[0])
	if err != nil {
		return Answer{}, fmt.Errorf("Allocate: %w", err)
	}
	return answer, nil
}

// prepare calls PreStartContainer for the devices.
func (p *devicePlugin) prepare(ctx context.Context, devices []string) error {
	_, err := endpoint.Call(ctx, p.timeout, "PreStartContainer", p.client.PreStartContainer,
		&pluginapi.PreStartContainerRequest{DevicesIds: devices})
	return err
}

// prefer returns the devices that the plugin prefers, unchecked.
func (p *devicePlugin) prefer(ctx context.Context, available, wanted []string, count int) ([]string, error) {
	request := &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: wanted, AllocationSize: int32(min(count, len(available))),
		}},
	}
	response, err := endpoint.Call(ctx, p.timeout, "GetPreferredAllocation", p.client.GetPreferredAllocation, request)
	if err != nil {
		return nil, err
	}
	if len(response.GetContainerResponses()) != 1 {
		return nil, errors.New("GetPreferredAllocation: it did not answer for one container, which it was asked for")
	}
	return response.GetContainerResponses()[0].GetDeviceIDs(), nil
}

// use keeps the connection of a plugin open until done is called. A nil plugin has none.
func (p *devicePlugin) use() {
	if p != nil {
		p.conn.Users.Add(1)
	}
}

func (p *devicePlugin) done() {
	if p != nil {
		p.conn.Users.Done()
	}
}

// release ends the watch of a plugin, and closes its connection after the last call. The caller holds h.mu.
func (h *Handler) release(p *devicePlugin) {
	p.unwatch()
	h.running.Go(p.conn.Retire)
}

// forsake releases a plugin that was not installed, and waits until its watch has ended.
func (h *Handler) forsake(p *devicePlugin) {
	p.unwatch()
	if p.unwatched != nil {
		<-p.unwatched
	}
	p.conn.Retire()
}
