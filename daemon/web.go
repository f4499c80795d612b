package daemon

import (
	"context"
	"iter"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/web"
)

// webSource is the daemon as the status page sees it.
type webSource struct {
	source   source
	launched launched
}

var _ web.Source = webSource{}

func (s webSource) Plugins() []*patchbayv1.Plugin {
	statuses := s.source.Plugins()
	plugins := make([]*patchbayv1.Plugin, len(statuses))
	for i, status := range statuses {
		plugins[i] = pluginMessage(status)
	}
	return plugins
}

func (s webSource) Launched() []*patchbayv1.LaunchedPlugin {
	statuses := s.launched.Plugins()
	plugins := make([]*patchbayv1.LaunchedPlugin, len(statuses))
	for i, status := range statuses {
		plugins[i] = launchedMessage(status)
	}
	return plugins
}

func (s webSource) Conditions() []*patchbayv1.Condition { return conditionMessages(s.source.Conditions()) }

func (s webSource) LastEvents(n int) []*patchbayv1.Event {
	events := s.source.LastEvents(n)
	messages := make([]*patchbayv1.Event, len(events))
	for i, e := range events {
		messages[i] = eventMessage(e)
	}
	return messages
}

func (s webSource) Events(ctx context.Context) <-chan *patchbayv1.Event {
	live := s.source.Events(ctx, 0)
	messages := make(chan *patchbayv1.Event)
	go func() { // ends with live, which ends with ctx
		defer close(messages)
		for e := range live {
			if e.Kind == patchbay.EventResync {
				continue // the picture is made anew all the same
			}
			select {
			case messages <- eventMessage(e):
			case <-ctx.Done():
			}
		}
	}()
	return messages
}

func (s webSource) Log(ctx context.Context, name string, n int) (iter.Seq[*patchbayv1.LogRecord], error) {
	log, err := s.launched.Log(name)
	if err != nil {
		return nil, err
	}
	return func(yield func(*patchbayv1.LogRecord) bool) {
		for r := range log.Follow(ctx, n) {
			if !yield(recordMessage(r)) {
				return
			}
		}
	}, nil
}
