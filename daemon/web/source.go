package web

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
	// LastEvents returns at most n past events, oldest first.
	LastEvents(n int) []*patchbayv1.Event
	// Events returns what happens from now on, in order, until ctx ends or there is nothing more, when the channel is closed.
	Events(ctx context.Context) <-chan *patchbayv1.Event
	// Log returns the last n records that a launched plugin printed or logged, and those that follow until ctx ends. The name is that of
	// the catalogue. An error says that there is no such plugin.
	Log(ctx context.Context, name string, n int) (iter.Seq[*patchbayv1.LogRecord], error)
}

// FleetSource is a power that a [Source] may also have: it knows the plugins of other nodes.
type FleetSource interface {
	// Fleet begins to follow the fleet, until the caller closes what it returns; nil if the node belongs to none.
	Fleet() (Fleet, error)
}

// Fleet is the present state of a fleet. Its methods return at once.
type Fleet interface {
	Nodes() []*patchbayv1.FleetNode
	// Plugins returns those of one node.
	Plugins(node string) []*patchbayv1.FleetPlugin
	Close()
}

// follow begins to follow the fleet of a source, nil if there is none.
func follow(source Source) (Fleet, error) {
	if s, ok := source.(FleetSource); ok {
		return s.Fleet()
	}
	return nil, nil //nolint:nilnil // no fleet is no error
}
