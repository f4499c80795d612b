package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"

	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// ErrNodeNotFound is wrapped by the error of a call about an unknown node of the fleet; its text is the daemon's.
var ErrNodeNotFound = errors.New("no such node is known")

// FleetNodes returns the nodes of the fleet that match, ordered by name, and how current the daemon's view is.
func (c *Client) FleetNodes(ctx context.Context, request *patchbayv1.ListNodesRequest) (*patchbayv1.ListNodesResponse, error) {
	return ask(ctx, c.explain, "list the nodes of the fleet", c.fleet.ListNodes, request)
}

// FleetPlugins returns the plugins of the fleet that match, ordered by type, name and node, and how current the daemon's view is.
func (c *Client) FleetPlugins(ctx context.Context, f *patchbayv1.FleetFilter) (*patchbayv1.ListFleetPluginsResponse, error) {
	return ask(ctx, c.explain, "list the plugins of the fleet", c.fleet.ListFleetPlugins, &patchbayv1.ListFleetPluginsRequest{Filter: f})
}

// FleetVersions returns which versions of the plugins that match run on which nodes, ordered by type, name and version, and how current the
// daemon's view is. Without states in the filter, only registered plugins count.
func (c *Client) FleetVersions(ctx context.Context, f *patchbayv1.FleetFilter) (*patchbayv1.ListFleetVersionsResponse, error) {
	return ask(ctx, c.explain, "list the versions in the fleet", c.fleet.ListFleetVersions, &patchbayv1.ListFleetVersionsRequest{Filter: f})
}

// DrainNode steers calls that may go to any node away from this one, and makes it give up its locks, until UncordonNode.
func (c *Client) DrainNode(ctx context.Context, node string) error {
	_, err := ask(ctx, c.explainNode, "drain node "+node, c.fleet.DrainNode, &patchbayv1.DrainNodeRequest{Node: node})
	return err
}

// WaitDrained blocks until a drained node serves no more calls of other nodes and holds no locks, or has stopped. If the deadline of ctx
// passes first, the error matches [context.DeadlineExceeded] and says what the node still does.
func (c *Client) WaitDrained(ctx context.Context, node string) error {
	waits, drained := "it has not published whether it serves calls", false
	request := &patchbayv1.WatchFleetRequest{Filter: &patchbayv1.FleetFilter{Nodes: []string{node}}, WithNodes: true}
	for change, err := range c.WatchFleet(ctx, request) {
		n := change.GetNode()
		switch {
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return err
		case err != nil:
			return fmt.Errorf("cannot wait for node %s: the time is over and %s: %w", node, waits, context.DeadlineExceeded)
		case n == nil:
		case change.GetKind() == "removed" || n.GetState() == "stopped":
			return nil
		case n.GetDrainedAt() == nil && drained:
			return fmt.Errorf("cannot wait for node %s: it is not drained any more", node)
		case n.GetDrainedAt() != nil && n.GetState() != "ready":
			drained, waits = true, "it is "+n.GetState()+": "+n.GetReason()
		case n.GetDrainedAt() != nil:
			drained = true
			for _, now := range n.GetConditions() {
				switch {
				case now.GetName() != "fleet-drain" || !proto.Equal(now.GetSince(), n.GetDrainedAt()): // of an earlier drain
				case now.GetStatus() == "ok":
					return nil
				default:
					waits = now.GetMessage()
				}
			}
		}
	}
	return ctx.Err()
}

// UncordonNode undoes DrainNode.
func (c *Client) UncordonNode(ctx context.Context, node string) error {
	_, err := ask(ctx, c.explainNode, "uncordon node "+node, c.fleet.UncordonNode, &patchbayv1.UncordonNodeRequest{Node: node})
	return err
}

// ForgetNode removes a node that is gone from etcd, before its retention expires.
func (c *Client) ForgetNode(ctx context.Context, node string) error {
	_, err := ask(ctx, c.explainNode, "forget node "+node, c.fleet.ForgetNode, &patchbayv1.ForgetNodeRequest{Node: node})
	return err
}

// FleetLocks returns which nodes hold the locks of exclusive plugins and how many compete for each, ordered by type and name.
func (c *Client) FleetLocks(ctx context.Context) ([]*patchbayv1.FleetLock, error) {
	answer, err := ask(ctx, c.explain, "list the locks of the fleet", c.fleet.ListLocks, &patchbayv1.ListLocksRequest{})
	return answer.GetLocks(), err
}

// WatchFleet returns what is in the fleet, as changes of kind "added", then an empty message, and then every change exactly once. The
// sequence behaves like that of [Client.Events].
func (c *Client) WatchFleet(ctx context.Context, r *patchbayv1.WatchFleetRequest) iter.Seq2[*patchbayv1.WatchFleetResponse, error] {
	return follow(ctx, c.explain, "watch the fleet", c.fleet.WatchFleet, r, message)
}

// WaitFleet blocks until at least count plugins of the fleet match, or none if count is zero, and returns the matching plugins. If the
// deadline of ctx passes first, the error matches [context.DeadlineExceeded] and has the number of plugins.
func (c *Client) WaitFleet(ctx context.Context, f *patchbayv1.FleetFilter, count int) ([]*patchbayv1.FleetPlugin, error) {
	const task = "wait for plugins of the fleet"
	if uint64(count) > math.MaxUint32 {
		return nil, fmt.Errorf("cannot %s: the count %d is negative or too large", task, count)
	}
	request := &patchbayv1.WaitForFleetPluginRequest{Filter: f, Count: uint32(count)}
	var seen *patchbayv1.ListFleetPluginsResponse
	unseen := context.DeadlineExceeded
	answer, late, err := waitOrLook(ctx, c.fleet.WaitForFleetPlugin, request, func(ctx context.Context) {
		seen, unseen = c.FleetPlugins(ctx, f)
	})
	plugins := seen.GetPlugins()
	switch {
	case err == nil:
		return answer.GetPlugins(), nil
	case !late:
		return nil, c.explain(task, err)
	case errors.Is(unseen, context.DeadlineExceeded):
		return nil, fmt.Errorf("cannot %s: the time is over and the daemon does not answer: %w", task, context.DeadlineExceeded)
	case unseen != nil:
		return nil, unseen
	case count == 0 && len(plugins) == 0, count > 0 && len(plugins) >= count:
		return plugins, nil
	}
	stale := ""
	if health := seen.GetHealth(); !health.GetCurrent() {
		stale = " (" + health.GetMessage() + ")"
	}
	if count == 0 {
		return nil, fmt.Errorf("cannot %s to go: the time is over and %d still match%s: %w", task, len(plugins), stale, context.DeadlineExceeded)
	}
	return nil, fmt.Errorf("cannot %s: the time is over and %d of %d match%s: %w", task, len(plugins), count, stale, context.DeadlineExceeded)
}

// explainNode is explain for calls that name a node.
func (c *Client) explainNode(task string, err error) error {
	if err = c.meaning(err); errors.Is(err, ErrNotFound) {
		err = inWords{err, ErrNodeNotFound}
	}
	return fmt.Errorf("cannot %s: %w", task, err)
}
