package daemon

import (
	"context"
	"errors"
	"math"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// WatchEvents implements patchbayv1connect.ControlServiceHandler.
func (c *control) WatchEvents(
	ctx context.Context, request *connect.Request[patchbayv1.WatchEventsRequest],
	stream *connect.ServerStream[patchbayv1.WatchEventsResponse],
) error {
	wanted := request.Msg
	matches := func(e patchbay.Event) bool {
		return anyOf(wanted.GetTypes(), e.Type) && anyOf(wanted.GetNames(), e.Name)
	}
	send := func(e patchbay.Event) error {
		// gofail: var controlEvent string
		// return errors.New(controlEvent)
		return stream.Send(&patchbayv1.WatchEventsResponse{Event: eventMessage(e)})
	}

	// The new events are subscribed to before the past ones are read, so nothing falls between; what is in both is sent once.
	var live <-chan patchbay.Event
	if wanted.GetFollow() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		live = c.source.Events(ctx, 0)
		if err := stream.Send(&patchbayv1.WatchEventsResponse{}); err != nil {
			return err
		}
	}
	past := c.source.LastEvents(math.MaxInt)
	var last uint64
	if len(past) > 0 {
		last = past[len(past)-1].Seq
	}
	for _, event := range newest(past, matches, wanted.Tail) {
		if err := send(event); err != nil {
			return err
		}
	}
	if !wanted.GetFollow() {
		return nil
	}
	return follow(ctx, live, last, func(e patchbay.Event) error {
		if !matches(e) {
			return nil
		}
		return send(e)
	})
}

// newest returns the events that match, of them the last tail ones if tail is set.
func newest(past []patchbay.Event, matches func(patchbay.Event) bool, tail *uint32) []patchbay.Event {
	var matching []patchbay.Event
	for _, event := range past {
		if matches(event) {
			matching = append(matching, event)
		}
	}
	if tail != nil && uint64(*tail) < uint64(len(matching)) {
		return matching[len(matching)-int(*tail):]
	}
	return matching
}

// follow passes on the events after the one numbered last, until ctx ends, an event is missing, or send fails.
func follow(ctx context.Context, live <-chan patchbay.Event, last uint64, send func(patchbay.Event) error) error {
	for {
		select {
		case <-ctx.Done():
			return ended(ctx)
		case event, ok := <-live:
			switch {
			case !ok:
				return ended(ctx)
			case event.Kind == patchbay.EventResync || event.Seq > last+1:
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
	}
}
