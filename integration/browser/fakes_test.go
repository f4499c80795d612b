package browser

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
)

// none is a daemon without plugins.
type none struct{ many }

func (none) Plugins() []*patchbayv1.Plugin { return nil }

// busy is a daemon in which much happened, and little of it to one plugin.
type busy struct{ none }

func (busy) LastEvents(n int) []*patchbayv1.Event {
	events := make([]*patchbayv1.Event, 3000)
	for i := range events {
		events[i] = &patchbayv1.Event{Seq: uint64(i + 1), Kind: "registered", Type: "T", Name: "other", Message: "again", Time: timestamppb.Now()}
	}
	events[0].Name, events[0].Message = "rare", "the first"
	events[2999].Name = "rare"
	return events[max(0, len(events)-n):]
}

func (busy) EventsOf(ptype, name string) []*patchbayv1.Event {
	return slices.DeleteFunc(busy{}.LastEvents(math.MaxInt), func(e *patchbayv1.Event) bool { return e.GetType() != ptype || e.GetName() != name })
}

// many is a daemon with 5,000 plugins.
type many struct{}

func (many) Plugins() []*patchbayv1.Plugin {
	plugins := make([]*patchbayv1.Plugin, 5000)
	for i := range plugins {
		plugins[i] = &patchbayv1.Plugin{
			Type: "CSIPlugin", Name: fmt.Sprintf("plugin-%04d.example.com", i), State: "registered", Current: true,
			SocketPath: fmt.Sprintf("/run/patchbay/plugins/%04d.sock", i),
		}
	}
	return plugins
}

func (many) Launched() []*patchbayv1.LaunchedPlugin { return nil }
func (many) Conditions() []*patchbayv1.Condition    { return nil }
func (many) About() (*patchbayv1.GetVersionResponse, *patchbayv1.GetConfigurationResponse) {
	return &patchbayv1.GetVersionResponse{Version: "v1.2.0", Node: "worker-1", StartTime: timestamppb.New(time.Now().Add(-26 * time.Hour))},
		&patchbayv1.GetConfigurationResponse{PluginDirs: []string{"/run/patchbay/plugins"}, Handlers: []string{"CSIPlugin", "DRAPlugin"}}
}

func (many) EventsOf(_, _ string) []*patchbayv1.Event        { return nil }
func (many) LastEvents(int) []*patchbayv1.Event              { return nil }
func (many) Fleet() page.Fleet                               { return nil }
func (many) Events(context.Context) <-chan *patchbayv1.Event { return nil }
func (many) Log(context.Context, string, int) (iter.Seq[*patchbayv1.LogRecord], error) {
	return nil, errors.New("nothing is launched")
}

// manyNodes is a fleet of 1,000 nodes, of which one is dead.
type manyNodes struct{ many }

func (manyNodes) Fleet() page.Fleet { return nodes{} }

type nodes struct{}

func (nodes) Health() *patchbayv1.FleetHealth { return &patchbayv1.FleetHealth{Current: true} }

func (nodes) Nodes() []*patchbayv1.FleetNode {
	list := make([]*patchbayv1.FleetNode, 1000)
	for i := range list {
		list[i] = &patchbayv1.FleetNode{Name: fmt.Sprintf("node-%03d", i), State: "ready", Plugins: 1}
	}
	list[777].State = "unreachable"
	return list
}

func (nodes) Plugins(node string) []*patchbayv1.FleetPlugin {
	return []*patchbayv1.FleetPlugin{{Node: node, Type: "CSIPlugin", Name: "on-" + node, State: "registered"}}
}
