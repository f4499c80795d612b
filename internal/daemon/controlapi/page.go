package controlapi

import (
	"context"
	"iter"
	"slices"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/plugin"
)

// About omits most of the configuration: anyone who can connect to the HTTP address may see the page.
func (c service) About() (*patchbayv1.GetVersionResponse, *patchbayv1.GetConfigurationResponse) {
	version, _ := c.GetVersion(context.Background(), nil)
	configuration, _ := c.GetConfiguration(context.Background(), nil)
	configuration.Effective = ""
	return version, configuration
}

func (c service) EventsOf(ptype, name string) []*patchbayv1.Event {
	matches := c.Names.LaunchedFilter(name)
	if ptype != "" {
		matches = c.Names.Filter([]string{ptype}, []string{name}, true).Matches
	}
	return each(slices.DeleteFunc(slices.Clone(c.past.get(c.pastEvents)), func(e plugin.Event) bool { return !matches(e) }), eventMessage)
}

func (c service) Plugins() []*patchbayv1.Plugin { return c.views.get(c.view).plugins }

func (c service) Launched() []*patchbayv1.LaunchedPlugin {
	return each(c.Launcher.Plugins(), c.launchedMessage)
}

func (c service) Conditions() []*patchbayv1.Condition {
	return each(c.Runtime.Conditions(), conditionMessage)
}

func (c service) LastEvents(n int) []*patchbayv1.Event {
	return each(c.Runtime.LastEvents(n), eventMessage)
}

func (c service) Events(ctx context.Context) <-chan *patchbayv1.Event {
	live := c.Runtime.Events(ctx, 0)
	messages := make(chan *patchbayv1.Event)
	go func() { // it ends when ctx is done: live is closed then
		defer close(messages)
		for e := range live {
			if e.Kind == plugin.EventResync {
				continue // the page polls the state in any case
			}
			select {
			case messages <- eventMessage(e):
			case <-ctx.Done():
			}
		}
	}()
	return messages
}

func (c service) Log(ctx context.Context, name string, n int) (iter.Seq[*patchbayv1.LogRecord], error) {
	log, err := c.Launcher.Log(name)
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

func (c service) Fleet() page.Fleet {
	if c.Node == nil {
		return nil
	}
	return webFleet{c.Node.Reader}
}

type webFleet struct{ reader *fleet.Reader }

func (f webFleet) Nodes() []*patchbayv1.FleetNode {
	f.reader.Use()
	return each(f.reader.Nodes(), nodeMessage)
}

func (f webFleet) Health() *patchbayv1.FleetHealth { return healthMessage(f.reader.Health()) }

func (f webFleet) Plugins(node string) []*patchbayv1.FleetPlugin {
	f.reader.Use()
	return each(f.reader.Plugins(fleet.Filter{Nodes: []string{node}}), fleetPluginMessage)
}
