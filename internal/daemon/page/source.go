// Package page is the status page: what a daemon's plugins do, live, for whoever may open it in a browser. It is read only, embedded in
// the program, and needs nothing from elsewhere.
//
// The page gets its data as JSON over server-sent events. One goroutine follows the daemon for all viewers, and there is none without a
// viewer. Whether a caller may see the page at all, and by which names the server is called, is decided by who serves it.
package page

import (
	"context"
	"iter"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// Source is where the page has its data from. Its methods are called by several goroutines at once and return at once.
type Source interface {
	// Plugins returns all instances and Launched all plugins that are launched, each as one consistent view. The messages are not changed
	// afterwards.
	Plugins() []*patchbayv1.Plugin
	Launched() []*patchbayv1.LaunchedPlugin
	Conditions() []*patchbayv1.Condition
	// About says which process of the daemon this is and with what it works. Either may be nil.
	About() (*patchbayv1.GetVersionResponse, *patchbayv1.GetConfigurationResponse)
	// LastEvents returns at most n past events, oldest first.
	LastEvents(n int) []*patchbayv1.Event
	// EventsOf returns all past events of one plugin that are kept, oldest first. The type may be a role; without one, the name is that of a
	// launched plugin in the catalogue.
	EventsOf(ptype, name string) []*patchbayv1.Event
	// Events returns what happens from now on, in order, until ctx ends or there is nothing more, when the channel is closed.
	Events(ctx context.Context) <-chan *patchbayv1.Event
	// Log returns the last n records that a launched plugin printed or logged, and those that follow until ctx ends. The name is that of
	// the catalogue. An error says that there is no such plugin.
	Log(ctx context.Context, name string, n int) (iter.Seq[*patchbayv1.LogRecord], error)
	// Fleet begins to follow the plugins of other nodes, until the caller closes what it returns; nil if the node belongs to no fleet.
	Fleet() (Fleet, error)
}

// Fleet is the present state of a fleet. Its methods return at once.
type Fleet interface {
	Nodes() []*patchbayv1.FleetNode
	// Health says how current the nodes are.
	Health() *patchbayv1.FleetHealth
	// Plugins returns those of one node.
	Plugins(node string) []*patchbayv1.FleetPlugin
	Close()
}
