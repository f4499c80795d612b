package daemon

import (
	"context"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// WaitForPlugin implements patchbayv1connect.ControlServiceHandler.
func (c *control) WaitForPlugin(
	ctx context.Context, request *connect.Request[patchbayv1.WaitForPluginRequest],
) (*connect.Response[patchbayv1.WaitForPluginResponse], error) {
	ptype, name := request.Msg.GetType(), request.Msg.GetName()
	if err := requirePlugin(ptype, name); err != nil {
		return nil, err
	}
	var reached func([]patchbay.PluginStatus) (*patchbay.PluginStatus, bool)
	switch goal := request.Msg.GetFor(); goal {
	case patchbayv1.WaitFor_WAIT_FOR_REGISTERED:
		reached = registered
	case patchbayv1.WaitFor_WAIT_FOR_DEREGISTERED:
		reached = deregistered
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument,
			fmt.Errorf("the request says not what to wait for (%s): set for to WAIT_FOR_REGISTERED or WAIT_FOR_DEREGISTERED", goal))
	}

	// Subscribed to before the first look, so that no change falls between a look and the wait for the next event.
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	events := c.source.Events(watching, 0)
	for {
		instances := c.instances(ptype, name)
		if status, ok := reached(instances); ok {
			response := &patchbayv1.WaitForPluginResponse{}
			if status != nil {
				response.Plugin = pluginMessage(*status)
			}
			return connect.NewResponse(response), nil
		}
		if !nextEvent(ctx, events, name) {
			return nil, waitEnded(ctx, instances)
		}
	}
}

// nextEvent blocks until an event concerns a plugin of that name, whatever its type and roles, or might because some were lost; false if
// there will be none.
func nextEvent(ctx context.Context, events <-chan patchbay.Event, name string) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case event, ok := <-events:
			if !ok {
				return false
			}
			if event.Kind == patchbay.EventResync || event.Name == name {
				return true
			}
		}
	}
}

// registered returns the instance that is current and registered.
func registered(instances []patchbay.PluginStatus) (*patchbay.PluginStatus, bool) {
	for i := range instances {
		if instances[i].State == reconciler.StateRegistered {
			return &instances[i], true
		}
	}
	return nil, false
}

// deregistered says whether the registry has no instance, one that is restored included, and returns the newest that is known. It is not
// a matter of states alone: while a survivor is validated anew it stays in the registry.
func deregistered(instances []patchbay.PluginStatus) (*patchbay.PluginStatus, bool) {
	if slices.ContainsFunc(instances, func(s patchbay.PluginStatus) bool { return s.Instance != "" }) {
		return nil, false
	}
	if len(instances) == 0 {
		return nil, true
	}
	return &instances[0], true
}

// waitEnded is [ended] with the state of the plugin, for those whose deadline the daemon notices before they do.
func waitEnded(ctx context.Context, instances []patchbay.PluginStatus) error {
	err := ended(ctx)
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		return err
	}
	state := "not known"
	if len(instances) > 0 {
		state = "in state " + string(instances[0].State)
	}
	return connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("the time to wait is over: the plugin is %s", state))
}
