package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// ErrNodeNotFound is wrapped by the error of a call about an unknown node of the fleet; its text is the daemon's.
var ErrNodeNotFound = errors.New("no such node is known")

// FleetFilter selects plugins of the fleet. An empty list matches everything; a list with several values matches any of them.
type FleetFilter struct {
	// Types also match the roles of a plugin.
	Types, Names, Nodes, Versions, States []string
	// Labels are those that the node must have.
	Labels map[string]string
	// Health has [Client.WatchFleet] say when the daemon has lost etcd, and when it has found it again.
	Health bool
}

// FleetHealth says how current the daemon's view of the fleet is.
type FleetHealth struct {
	// Current says that the daemon is following etcd. If it is not, Message says why, and Since is when that began.
	Current bool       `json:"current"`
	Message string     `json:"message"`
	Since   *time.Time `json:"since"`
}

// FleetNode is one node of the fleet.
type FleetNode struct {
	Name string `json:"name"`
	// State is "ready", "unreachable", "stopped" or "unknown". States that this package does not know may be added.
	State string `json:"state"`
	// Reason says in a sentence why it is in its state; empty if the state says it all.
	Reason string `json:"reason"`
	// Instance identifies this start of its daemon.
	Instance string `json:"instance"`
	// Address is HOST:PORT at which it accepts calls; empty if it accepts none.
	Address string `json:"address"`
	// Version is the version of Patchbay that it runs.
	Version   string     `json:"version"`
	StartedAt *time.Time `json:"startedAt"`
	// LastSeen is when it was last known to be alive; nil while it is ready. If the daemon did not follow etcd then, the node may have been
	// alive until LastSeenBefore, which is nil otherwise.
	LastSeen       *time.Time  `json:"lastSeen"`
	LastSeenBefore *time.Time  `json:"lastSeenBefore"`
	Conditions     []Condition `json:"conditions"`
	// Plugins is the number of instances of plugins that it has.
	Plugins int               `json:"plugins"`
	Labels  map[string]string `json:"labels"`
	// DrainedAt is when the node was drained, nil if it is not; DrainedBy is the node on which that was requested.
	DrainedAt *time.Time `json:"drainedAt"`
	DrainedBy string     `json:"drainedBy"`
}

// FleetLock is the lock of a plugin of which one instance in the fleet may be active.
type FleetLock struct {
	Type string `json:"type"`
	Name string `json:"name"`
	// Node holds it; empty if none does. FencingToken is that of the holder.
	Node         string `json:"node"`
	FencingToken int64  `json:"fencingToken"`
	// Candidates is how many nodes compete for it, including the holder.
	Candidates int `json:"candidates"`
}

// FleetPlugin is one instance of a plugin on one node.
type FleetPlugin struct {
	Node    string `json:"node"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	// State is the one that its node published, and "unreachable" if the node is not ready; PublishedState is the former in any case.
	State          string `json:"state"`
	PublishedState string `json:"publishedState"`
	// Reason says in a sentence why it is in its state; empty if the state says it all.
	Reason       string            `json:"reason"`
	Current      bool              `json:"current"`
	Instance     string            `json:"instance"`
	Endpoint     string            `json:"endpoint"`
	Source       string            `json:"source"`
	Roles        []string          `json:"roles"`
	Details      map[string]string `json:"details"`
	RegisteredAt *time.Time        `json:"registeredAt"`
	// LastSeen and LastSeenBefore are those of its node.
	LastSeen       *time.Time `json:"lastSeen"`
	LastSeenBefore *time.Time `json:"lastSeenBefore"`
	// FencingToken is above zero if the plugin is exclusive and its node holds the lock. Only lists have it.
	FencingToken int64 `json:"fencingToken"`
	// Unhealthy says that its node launched it, and that it reports through grpc.health.v1 that it is not serving, or does not answer.
	Unhealthy bool `json:"unhealthy"`
}

// FleetVersion is one version of a plugin, with the nodes on which it is the current one.
type FleetVersion struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	// Nodes are ordered by name.
	Nodes []string `json:"nodes"`
	// DiffersSince is since when nodes have different versions of the plugin; nil if all have the same.
	DiffersSince *time.Time `json:"differsSince"`
}

// FleetChange is one change in the fleet.
type FleetChange struct {
	// Kind is "added", "changed" or "removed".
	Kind string `json:"kind"`
	// Plugin or Node is what changed, as it is now, or as it was if it was removed.
	Plugin *FleetPlugin `json:"plugin,omitempty"`
	Node   *FleetNode   `json:"node,omitempty"`
	// Health says how current the daemon's view is, if that is what changed; only with [FleetFilter].Health.
	Health *FleetHealth `json:"health,omitempty"`
}

// FleetNodes returns the nodes of the fleet that match, ordered by name: Nodes, Labels and States count, which are those of nodes.
func (c *Client) FleetNodes(ctx context.Context, f FleetFilter) ([]FleetNode, FleetHealth, error) {
	request := &patchbayv1.ListNodesRequest{Nodes: f.Nodes, States: f.States, Labels: f.Labels}
	answer, err := ask(ctx, c.explain, "list the nodes of the fleet", c.fleet.ListNodes, request)
	return each(answer.GetNodes(), fleetNodeOf), fleetHealthOf(answer.GetHealth()), err
}

// FleetPlugins returns the plugins of the fleet that match, ordered by type, name and node.
func (c *Client) FleetPlugins(ctx context.Context, f FleetFilter) ([]FleetPlugin, FleetHealth, error) {
	request := &patchbayv1.ListFleetPluginsRequest{Filter: f.message()}
	answer, err := ask(ctx, c.explain, "list the plugins of the fleet", c.fleet.ListFleetPlugins, request)
	return each(answer.GetPlugins(), fleetPluginOf), fleetHealthOf(answer.GetHealth()), err
}

// FleetVersions returns which versions of the plugins that match run on which nodes, ordered by type, name and version. Without states in
// the filter, only registered plugins count.
func (c *Client) FleetVersions(ctx context.Context, f FleetFilter) ([]FleetVersion, FleetHealth, error) {
	request := &patchbayv1.ListFleetVersionsRequest{Filter: f.message()}
	answer, err := ask(ctx, c.explain, "list the versions in the fleet", c.fleet.ListFleetVersions, request)
	return each(answer.GetVersions(), func(v *patchbayv1.FleetVersion) FleetVersion {
		return FleetVersion{v.GetType(), v.GetName(), v.GetVersion(), v.GetNodes(), timeOf(v.GetDiffersSince())}
	}), fleetHealthOf(answer.GetHealth()), err
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
	for change, err := range c.WatchFleet(ctx, FleetFilter{Nodes: []string{node}}, true, nil) {
		n := change.Node
		switch {
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return err
		case err != nil:
			return fmt.Errorf("cannot wait for node %s: the time is over and %s: %w", node, waits, context.DeadlineExceeded)
		case n == nil:
		case change.Kind == "removed" || n.State == "stopped":
			return nil
		case n.DrainedAt == nil && drained:
			return fmt.Errorf("cannot wait for node %s: it is not drained any more", node)
		case n.DrainedAt != nil && n.State != "ready":
			drained, waits = true, "it is "+n.State+": "+n.Reason
		case n.DrainedAt != nil:
			drained = true
			for _, now := range n.Conditions {
				switch {
				case now.Name != "fleet-drain" || now.Since == nil || !now.Since.Equal(*n.DrainedAt): // of an earlier drain
				case now.Status == "ok":
					return nil
				default:
					waits = now.Message
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

// FleetLocks returns who holds and wants the locks of plugins, ordered by type and name.
func (c *Client) FleetLocks(ctx context.Context) ([]FleetLock, error) {
	answer, err := ask(ctx, c.explain, "list the locks of the fleet", c.fleet.ListLocks, &patchbayv1.ListLocksRequest{})
	return each(answer.GetLocks(), func(l *patchbayv1.FleetLock) FleetLock {
		return FleetLock{l.GetType(), l.GetName(), l.GetNode(), l.GetFencingToken(), int(l.GetCandidates())}
	}), err
}

// WatchFleet returns what is in the fleet, as changes of kind "added", and then every change exactly once. With nodes it also returns the
// changes of the nodes that the filter names.
//
// The sequence is single-use and ends as that of [Client.Events] does. It calls listed, which may be nil, at the end of the present state.
func (c *Client) WatchFleet(ctx context.Context, f FleetFilter, nodes bool, listed func()) iter.Seq2[FleetChange, error] {
	request := &patchbayv1.WatchFleetRequest{Filter: f.message(), WithNodes: nodes, WithHealth: f.Health}
	return follow(ctx, c.explain, "watch the fleet", c.fleet.WatchFleet, request, func(m *patchbayv1.WatchFleetResponse) *FleetChange {
		switch {
		case m.GetPlugin() != nil:
			return &FleetChange{Kind: m.GetKind(), Plugin: new(fleetPluginOf(m.GetPlugin()))}
		case m.GetNode() != nil:
			return &FleetChange{Kind: m.GetKind(), Node: new(fleetNodeOf(m.GetNode()))}
		case m.GetHealth() != nil:
			return &FleetChange{Kind: m.GetKind(), Health: new(fleetHealthOf(m.GetHealth()))}
		case listed != nil:
			listed()
		}
		return nil
	})
}

// WaitFleet blocks until at least count plugins of the fleet match, or none does if count is zero, and returns those that match. If the
// deadline of ctx passes first, the error matches [context.DeadlineExceeded] and says how many there are.
func (c *Client) WaitFleet(ctx context.Context, f FleetFilter, count int) ([]FleetPlugin, error) {
	const task = "wait for plugins of the fleet"
	if uint64(count) > math.MaxUint32 {
		return nil, fmt.Errorf("cannot %s: the count %d is negative or too large", task, count)
	}
	request := &patchbayv1.WaitForFleetPluginRequest{Filter: f.message(), Count: uint32(count)}
	var plugins []FleetPlugin
	var health FleetHealth
	unseen := context.DeadlineExceeded
	answer, late, err := waitOrLook(ctx, c.fleet.WaitForFleetPlugin, request, func(ctx context.Context) {
		plugins, health, unseen = c.FleetPlugins(ctx, f)
	})
	switch {
	case err == nil:
		return each(answer.GetPlugins(), fleetPluginOf), nil
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
	if !health.Current {
		stale = " (" + health.Message + ")"
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

func (f FleetFilter) message() *patchbayv1.FleetFilter {
	return &patchbayv1.FleetFilter{Types: f.Types, Names: f.Names, Nodes: f.Nodes, Versions: f.Versions, States: f.States, Labels: f.Labels}
}

func fleetHealthOf(h *patchbayv1.FleetHealth) FleetHealth {
	return FleetHealth{Current: h.GetCurrent(), Message: h.GetMessage(), Since: timeOf(h.GetSince())}
}

func fleetNodeOf(n *patchbayv1.FleetNode) FleetNode {
	return FleetNode{
		Name: n.GetName(), State: n.GetState(), Reason: n.GetReason(), Instance: n.GetInstance(), Address: n.GetAddress(),
		Version: n.GetVersion(), StartedAt: timeOf(n.GetStartedAt()), LastSeen: timeOf(n.GetLastSeen()),
		LastSeenBefore: timeOf(n.GetLastSeenBefore()), Conditions: each(n.GetConditions(), conditionOf), Plugins: int(n.GetPlugins()),
		Labels: n.GetLabels(), DrainedAt: timeOf(n.GetDrainedAt()), DrainedBy: n.GetDrainedBy(),
	}
}

func fleetPluginOf(p *patchbayv1.FleetPlugin) FleetPlugin {
	return FleetPlugin{
		Node: p.GetNode(), Type: p.GetType(), Name: p.GetName(), Version: p.GetVersion(), State: p.GetState(),
		PublishedState: p.GetPublishedState(), Reason: p.GetReason(), Current: p.GetCurrent(), Instance: p.GetInstance(),
		Endpoint: p.GetEndpoint(), Source: p.GetSource(), Roles: present(p.GetRoles()), Details: p.GetDetails(),
		RegisteredAt: timeOf(p.GetRegisteredAt()), LastSeen: timeOf(p.GetLastSeen()), LastSeenBefore: timeOf(p.GetLastSeenBefore()),
		FencingToken: p.GetFencingToken(), Unhealthy: p.GetUnhealthy(),
	}
}
