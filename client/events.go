package client

import (
	"context"
	"iter"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// EventsOptions says which events [Client.Events] gives. The zero value stands for all past events that the daemon keeps.
type EventsOptions struct {
	// Follow goes on with new events after the past ones.
	Follow bool
	// Tail is how many of the past events are given, the newest ones, oldest first; nil for all that are kept.
	Tail *uint32
}

// Events returns the events of the daemon in the order in which they happened. Past and new ones meet without gap or repeat.
//
// The sequence is single-use: each iteration is a call of its own. Without Follow it ends after the past events. An error is the
// last pair of the sequence: that of the context when it ends, [ErrNotRunning] when the daemon goes away, and [ErrBehind] when the
// iteration was too slow for the daemon to keep what it had not read.
func (c *Client) Events(ctx context.Context, options EventsOptions) iter.Seq2[Event, error] {
	request := &patchbayv1.WatchEventsRequest{Follow: options.Follow, Tail: options.Tail}
	return func(yield func(Event, error) bool) {
		// The end of the context, and not reading to its end, is what ends a stream that is left early.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.rpc.WatchEvents(ctx, connect.NewRequest(request))
		if err != nil {
			yield(Event{}, c.explain("read the events", err))
			return
		}
		defer func() {
			cancel()
			_ = stream.Close() // nothing is left to learn from it
		}()
		for stream.Receive() {
			event := stream.Msg().GetEvent()
			if event == nil {
				continue // says only that the watch stands
			}
			if !yield(eventOf(event), nil) {
				return
			}
		}
		if err := stream.Err(); err != nil {
			yield(Event{}, c.explain("read the events", err))
		}
	}
}
