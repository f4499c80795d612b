// Package page serves the status page: a live, read-only view of a daemon's plugins in a browser. The page is embedded in the program and
// loads nothing from other servers.
//
// The page receives its data as JSON over server-sent events. One goroutine follows the daemon for all viewers, and runs only while there
// are viewers. The caller of [Handler] must check whether a client may see the page, and check the host name in the request.
package page

import (
	"context"
	"iter"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// Source provides the data of the page. Its methods are called concurrently and must not block.
type Source interface {
	// Plugins returns all instances and Launched all launched plugins, each as one consistent view. The messages must not change
	// afterwards.
	Plugins() []*patchbayv1.Plugin
	Launched() []*patchbayv1.LaunchedPlugin
	Conditions() []*patchbayv1.Condition
	// About returns the version and the configuration of the daemon. Either may be nil.
	About() (*patchbayv1.GetVersionResponse, *patchbayv1.GetConfigurationResponse)
	// LastEvents returns at most n past events, oldest first.
	LastEvents(n int) []*patchbayv1.Event
	// EventsOf returns all past events of one plugin that are kept, oldest first. The type may be a role; if it is empty, the name is that
	// of a launched plugin in the catalogue.
	EventsOf(ptype, name string) []*patchbayv1.Event
	// Events returns a channel with the new events in order. It is closed when ctx is done or the source ends.
	Events(ctx context.Context) <-chan *patchbayv1.Event
	// Log returns the last n records that a launched plugin printed or logged, and new ones until ctx is done. The name is that of the
	// catalogue. An error means that there is no such plugin.
	Log(ctx context.Context, name string, n int) (iter.Seq[*patchbayv1.LogRecord], error)
	// Fleet returns the fleet; nil if the node does not belong to one.
	Fleet() Fleet
}

// Fleet is the current state of a fleet, which is followed while Nodes or Plugins is called. Its methods must not block.
type Fleet interface {
	// Nodes returns all nodes.
	Nodes() []*patchbayv1.FleetNode
	// Health reports whether the list of nodes is current.
	Health() *patchbayv1.FleetHealth
	// Plugins returns the plugins of one node.
	Plugins(node string) []*patchbayv1.FleetPlugin
}
