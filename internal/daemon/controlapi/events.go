package controlapi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/resolver"
	"github.com/patchbay-dev/patchbay/plugin"
)

func (c service) WaitForPlugin(ctx context.Context, request *patchbayv1.WaitForPluginRequest) (*patchbayv1.WaitForPluginResponse, error) {
	asked, err := c.askedFor(request)
	if err != nil {
		return nil, err
	}
	reached := map[patchbayv1.WaitFor]func([]plugin.Status) (*plugin.Status, bool){
		patchbayv1.WaitFor_WAIT_FOR_REGISTERED: registered, patchbayv1.WaitFor_WAIT_FOR_DEREGISTERED: deregistered,
	}[request.GetFor()]
	if reached == nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(
			"the request does not say what to wait for (%s): set for to WAIT_FOR_REGISTERED or WAIT_FOR_DEREGISTERED", request.GetFor()))
	}

	// Subscribe before reading the state, so that no change is missed in between.
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	events := c.Runtime.Events(watching, 0)
	for {
		instances := c.Names.Instances(asked)
		if status, ok := reached(instances); ok {
			response := &patchbayv1.WaitForPluginResponse{}
			if status != nil {
				response.Plugin = c.message(*status)
			}
			return response, nil
		}
		if !c.nextEvent(events, asked) {
			state := "not known"
			if len(instances) > 0 {
				state = "in state " + string(instances[0].State)
			}
			return nil, waitEnded(ctx, "the plugin is "+state)
		}
	}
}

// nextEvent blocks until an event may concern the plugin, and returns false if the events have ended.
func (c service) nextEvent(events <-chan plugin.Event, asked plugin.Name) bool {
	for event := range events {
		if c.Names.Concerns(asked, event) {
			return true
		}
	}
	return false
}

// registered returns the instance that is registered or idle.
func registered(instances []plugin.Status) (*plugin.Status, bool) {
	i := slices.IndexFunc(instances, func(s plugin.Status) bool {
		return s.State == plugin.StateRegistered || s.State == plugin.StateIdle
	})
	if i < 0 {
		return nil, false
	}
	return &instances[i], true
}

// deregistered reports whether the registry has no instance, and returns the newest known instance. It looks at Instance and not at the
// states: an instance stays in the registry while it is validated again.
func deregistered(instances []plugin.Status) (*plugin.Status, bool) {
	if slices.ContainsFunc(instances, func(s plugin.Status) bool { return s.Instance != "" }) {
		return nil, false
	}
	if len(instances) == 0 {
		return nil, true
	}
	return &instances[0], true
}

// waitEnded is [ended] with the state at the deadline, for callers that receive the daemon's response before their own deadline.
func waitEnded(ctx context.Context, state string) error {
	err := ended(ctx)
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		return err
	}
	return connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("the time to wait is over: %s", state))
}

func (c service) WatchEvents(
	ctx context.Context, wanted *patchbayv1.WatchEventsRequest, stream *connect.ServerStream[patchbayv1.WatchEventsResponse],
) error {
	kinds := resolver.SetOf(wanted.GetKinds())
	matching := func(arePast bool) func(plugin.Event) bool {
		filter := c.Names.Filter(wanted.GetTypes(), wanted.GetNames(), arePast)
		return func(e plugin.Event) bool {
			return kinds.Contains(string(e.Kind)) && (wanted.GetSince() == nil || !e.Time.Before(wanted.GetSince().AsTime())) && filter.Matches(e)
		}
	}
	send := func(e plugin.Event) error {
		// gofail: var controlEvent string
		// return errors.New(controlEvent)
		return stream.Send(&patchbayv1.WatchEventsResponse{Event: eventMessage(e)})
	}

	// Subscribe before reading the past events, so that no event is missed in between. Events in both are sent once.
	var live <-chan plugin.Event
	if wanted.GetFollow() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		live = c.Runtime.Events(ctx, 0)
		if err := stream.Send(&patchbayv1.WatchEventsResponse{}); err != nil {
			return err
		}
	}
	past := c.past.get(c.pastEvents)
	var last uint64
	if len(past) > 0 {
		last = past[len(past)-1].Seq
	}
	if err := sendPast(ctx, past, matching(true), wanted.Tail, send); err != nil {
		return err
	}
	if !wanted.GetFollow() {
		return nil
	}
	matches := matching(false)
	return follow(ctx, live, last, func(e plugin.Event) error {
		if !matches(e) {
			return nil
		}
		return send(e)
	})
}

// eventSize is the approximate size of an event in memory without its texts.
const eventSize = 150

// sendPast sends the past events that match, or the last tail of them if tail is not nil. They count as a list until the last one is sent.
func sendPast(
	ctx context.Context, past []plugin.Event, matches func(plugin.Event) bool, tail *uint32, send func(plugin.Event) error,
) error {
	var matching []plugin.Event
	for _, e := range past {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		if matches(e) {
			matching = append(matching, e)
		}
	}
	if tail != nil && uint64(*tail) < uint64(len(matching)) {
		matching = matching[len(matching)-int(*tail):]
	}
	bytes := 0
	for _, e := range matching {
		bytes += eventSize + len(e.Type) + len(e.Name) + len(e.Instance) + len(e.Endpoint) + len(e.SocketPath) + len(e.Message)
	}
	if err := countList(ctx, bytes); err != nil {
		return err
	}
	defer sent(ctx)
	for _, e := range matching {
		if err := send(e); err != nil {
			return err
		}
	}
	return nil
}

// follow sends the events after number last until they end, one is missing, or send fails.
func follow(ctx context.Context, live <-chan plugin.Event, last uint64, send func(plugin.Event) error) error {
	for event := range live {
		switch {
		case event.Kind == plugin.EventResync || event.Seq > last+1:
			return connect.NewError(connect.CodeResourceExhausted,
				errors.New("events were lost because they were read too slowly: list the plugins and watch again"))
		case event.Seq <= last:
			continue
		}
		last = event.Seq
		if err := send(event); err != nil {
			return err
		}
	}
	return ended(ctx)
}
