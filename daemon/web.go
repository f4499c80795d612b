package daemon

import (
	"context"
	"iter"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/daemon/web"
	"github.com/patchbay-dev/patchbay/fleet"
)

// webSource is the daemon as the status page sees it.
type webSource struct {
	source   source
	launched launched
	fleet    *fleetMember // nil for none
}

var (
	_ web.Source      = webSource{}
	_ web.FleetSource = webSource{}
)

func (s webSource) Fleet() (web.Fleet, error) {
	if s.fleet == nil {
		return nil, nil //nolint:nilnil // no fleet is no error
	}
	reader, release, err := s.fleet.acquire()
	if err != nil {
		return nil, err
	}
	return webFleet{reader, release}, nil
}

// webFleet is the fleet as the status page sees it.
type webFleet struct {
	reader  *fleet.Reader
	release func()
}

func (f webFleet) Nodes() []*patchbayv1.FleetNode {
	nodes := f.reader.Nodes()
	messages := make([]*patchbayv1.FleetNode, len(nodes))
	for i, n := range nodes {
		messages[i] = nodeMessage(n)
	}
	return messages
}

func (f webFleet) Plugins(node string) []*patchbayv1.FleetPlugin {
	return fleetPluginMessages(f.reader.Plugins(fleet.Filter{Nodes: []string{node}}))
}

func (f webFleet) Close() { f.release() }

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

func (s webSource) Conditions() []*patchbayv1.Condition {
	return conditionMessages(s.source.Conditions())
}

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
