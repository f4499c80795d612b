package controlapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// firstRead bounds how long a request waits for the first list of the fleet, unless its purpose is to wait. It is shorter than clients wait
// for a response, so that they get the reason.
const firstRead = 4 * time.Second

// readFleet returns a reader that has read the fleet. It waits for the first list for at most patience.
func (c service) readFleet(ctx context.Context, patience time.Duration) (*fleet.Reader, error) {
	if c.Node == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, node.ErrNoFleet)
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	reader := c.Node.Reader
	err := reader.Ready(waiting)
	switch {
	case err == nil:
		return reader, nil
	case errors.Is(err, fleet.ErrClosed):
		return nil, connect.NewError(connect.CodeUnavailable, server.ErrStopping)
	case ctx.Err() != nil:
		return nil, ended(ctx)
	}
	return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New(untrusted.Valid(reader.Health().Message)))
}

func (c service) ListNodes(ctx context.Context, request *patchbayv1.ListNodesRequest) (*patchbayv1.ListNodesResponse, error) {
	reader, err := c.readFleet(ctx, firstRead)
	if err != nil {
		return nil, err
	}
	response := &patchbayv1.ListNodesResponse{Health: healthMessage(reader.Health())}
	wanted := fleet.Filter{Nodes: request.GetNodes(), Labels: request.GetLabels()}
	for _, n := range reader.Nodes() {
		if wanted.MatchNode(n) && anyOf(request.GetStates(), string(n.State)) {
			response.Nodes = append(response.Nodes, nodeMessage(n))
		}
	}
	return response, nil
}

func (c service) ListFleetPlugins(
	ctx context.Context, request *patchbayv1.ListFleetPluginsRequest,
) (*patchbayv1.ListFleetPluginsResponse, error) {
	reader, err := c.readFleet(ctx, firstRead)
	if err != nil {
		return nil, err
	}
	plugins := each(reader.Plugins(filterOf(request.GetFilter())), fleetPluginMessage)
	health := healthMessage(reader.Health())
	if c.Node.Elector != nil {
		ctx, cancel := context.WithTimeout(ctx, firstRead)
		defer cancel()
		locks, err := c.Node.Cluster.Locks(ctx)
		if err != nil && health.GetMessage() == "" {
			health.Message = untrusted.Valid(err.Error()) + "; see the log of the daemon"
		}
		held := map[plugin.Name]keys.LockState{}
		for _, l := range locks {
			held[l.Lock] = l
		}
		for _, p := range plugins {
			markHolder(p, held)
		}
	}
	return &patchbayv1.ListFleetPluginsResponse{Plugins: plugins, Health: health}, nil
}

func (c service) WatchFleet(
	ctx context.Context, request *patchbayv1.WatchFleetRequest, stream *connect.ServerStream[patchbayv1.WatchFleetResponse],
) error {
	reader, err := c.readFleet(ctx, firstRead)
	if err != nil {
		return err
	}
	filter := filterOf(request.GetFilter())
	filter.Health = request.GetWithHealth()
	snapshot, changes, err := reader.Watch(ctx, filter)
	if err != nil {
		return ended(ctx)
	}
	if health := reader.Health(); filter.Health && !health.Current {
		if err := stream.Send(changeMessage(fleet.Change{Kind: fleet.Changed, Health: &health})); err != nil {
			return err
		}
	}
	withNodes := request.GetWithNodes()
	if err := sendSnapshot(ctx, snapshot, withNodes, stream.Send); err != nil {
		return err
	}
	for change := range changes {
		if change.Kind == fleet.Resync {
			return connect.NewError(connect.CodeResourceExhausted,
				errors.New("changes were lost because they were read too slowly: watch again"))
		}
		if change.Node != nil && !withNodes {
			continue
		}
		if err := stream.Send(changeMessage(change)); err != nil {
			return err
		}
	}
	return ended(ctx)
}

// sendSnapshot sends the present state followed by an empty message. The messages count as a list until the last one is sent.
func sendSnapshot(
	ctx context.Context, snapshot fleet.Snapshot, withNodes bool, send func(*patchbayv1.WatchFleetResponse) error,
) error {
	var messages []*patchbayv1.WatchFleetResponse
	bytes := 0
	add := func(c fleet.Change) {
		messages = append(messages, changeMessage(c))
		bytes += proto.Size(messages[len(messages)-1])
	}
	for _, n := range snapshot.Nodes {
		if withNodes {
			add(fleet.Change{Kind: fleet.Added, Node: n})
		}
	}
	for _, p := range snapshot.Plugins {
		add(fleet.Change{Kind: fleet.Added, Plugin: &p})
	}
	if err := countList(ctx, bytes); err != nil {
		return err
	}
	defer sent(ctx)
	for _, m := range append(messages, &patchbayv1.WatchFleetResponse{}) {
		if err := send(m); err != nil {
			return err
		}
	}
	return nil
}

func changeMessage(c fleet.Change) *patchbayv1.WatchFleetResponse {
	message := &patchbayv1.WatchFleetResponse{Kind: string(c.Kind)}
	switch {
	case c.Plugin != nil:
		message.Plugin = fleetPluginMessage(*c.Plugin)
	case c.Node != nil:
		message.Node = nodeMessage(c.Node)
	case c.Health != nil:
		message.Health = healthMessage(*c.Health)
	}
	return message
}

func (c service) WaitForFleetPlugin(
	ctx context.Context, request *patchbayv1.WaitForFleetPluginRequest,
) (*patchbayv1.WaitForFleetPluginResponse, error) {
	patience := time.Duration(math.MaxInt64)
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) * 9 / 10 // leaves time to send the reason
	}
	reader, err := c.readFleet(ctx, patience)
	if err != nil {
		return nil, err
	}
	count := int(request.GetCount())
	plugins, err := reader.Wait(ctx, filterOf(request.GetFilter()), func(plugins []fleet.Instance) bool {
		if count == 0 {
			return len(plugins) == 0
		}
		return len(plugins) >= count
	})
	if err != nil {
		return nil, waitEnded(ctx, fmt.Sprintf("%d plugins match", len(plugins)))
	}
	return &patchbayv1.WaitForFleetPluginResponse{Plugins: each(plugins, fleetPluginMessage)}, nil
}

func (c service) ListFleetVersions(
	ctx context.Context, request *patchbayv1.ListFleetVersionsRequest,
) (*patchbayv1.ListFleetVersionsResponse, error) {
	reader, err := c.readFleet(ctx, firstRead)
	if err != nil {
		return nil, err
	}
	f := filterOf(request.GetFilter())
	nodes, only := f.Nodes, f.Versions
	f.Nodes, f.Versions = nil, nil // the versions of all nodes are compared
	versions := slices.DeleteFunc(node.Versions(reader, f), func(v *patchbayv1.FleetVersion) bool {
		isOn := func(node string) bool { return slices.Contains(v.GetNodes(), node) }
		return len(only) > 0 && !slices.Contains(only, v.GetVersion()) || len(nodes) > 0 && !slices.ContainsFunc(nodes, isOn)
	})
	return &patchbayv1.ListFleetVersionsResponse{Versions: versions, Health: healthMessage(reader.Health())}, nil
}

func filterOf(f *patchbayv1.FleetFilter) fleet.Filter {
	filter := fleet.Filter{Types: f.GetTypes(), Names: f.GetNames(), Nodes: f.GetNodes(), Versions: f.GetVersions(), Labels: f.GetLabels()}
	for _, state := range f.GetStates() {
		filter.States = append(filter.States, plugin.State(state))
	}
	return filter
}

func healthMessage(h fleet.Health) *patchbayv1.FleetHealth {
	return &patchbayv1.FleetHealth{Current: h.Current, Message: untrusted.Valid(h.Message), Since: timestamp(h.Since)}
}

func nodeMessage(n *fleet.Node) *patchbayv1.FleetNode {
	message := &patchbayv1.FleetNode{
		Name: n.Name, State: string(n.State), Instance: n.GetInstance(), Address: n.GetAddress(), Version: n.GetVersion(), Labels: n.GetLabels(),
		StartedAt: n.GetStartedAt(), LastSeen: timestamp(n.LastSeen), LastSeenBefore: timestamp(n.SeenBefore), Plugins: uint32(n.Count()),
		Reason: reasonOf(n, nodeReasons),
	}
	for _, c := range n.GetConditions() {
		m := conditionMessage(plugin.Condition{Name: c.GetName(), OK: c.GetOk(), Message: c.GetMessage()})
		m.Since = c.GetSince()
		message.Conditions = append(message.Conditions, m)
	}
	if n.Cordon.Drained {
		if message.DrainedAt = timestamp(n.Cordon.Since); message.DrainedAt == nil {
			message.DrainedAt = n.GetStartedAt()
		}
		message.DrainedBy = n.Cordon.By
	}
	return message
}

// The reasons why a node, and a plugin, is in its state, by the state of the node. %s is when the node was last seen.
var (
	nodeReasons = map[fleet.NodeState]string{
		fleet.NodeUnreachable: "Its presence in etcd has ended; it was last seen %s.",
		fleet.NodeStopped:     "Its daemon stopped %s.",
		fleet.NodeUnknown:     "Its record is missing or malformed.",
	}
	pluginReasons = map[fleet.NodeState]string{
		fleet.NodeUnreachable: "Its node is unreachable, last seen %s.",
		fleet.NodeStopped:     "Its node stopped %s.",
		fleet.NodeUnknown:     "It is not known how its node is.",
	}
)

// reasonOf returns the reason for the state of a node. If SeenBefore is not zero, the exact time is between LastSeen and SeenBefore.
func reasonOf(n *fleet.Node, reasons map[fleet.NodeState]string) string {
	last, before := n.LastSeen.UTC().Format(time.RFC3339), n.SeenBefore.UTC().Format(time.RFC3339)
	seen := "at " + last
	switch {
	case n.LastSeen.IsZero() && n.SeenBefore.IsZero():
		seen = "at a time that is not known"
	case n.LastSeen.IsZero():
		seen = "before " + before
	case !n.SeenBefore.IsZero():
		seen += " or later, but before " + before
	}
	return strings.Replace(reasons[n.State], "%s", seen, 1)
}

// markHolder sets the fencing token of a plugin whose node holds the lock for its type or, if there is none, for its first role with a
// lock.
func markHolder(p *patchbayv1.FleetPlugin, held map[plugin.Name]keys.LockState) {
	for _, ptype := range append([]string{p.GetType()}, p.GetRoles()...) {
		if l, ok := held[plugin.Name{Type: ptype, Name: p.GetName()}]; ok && l.Node == p.GetNode() && p.GetCurrent() {
			p.FencingToken = l.Token
			return
		}
	}
}

func fleetPluginMessage(p fleet.Instance) *patchbayv1.FleetPlugin {
	message := &patchbayv1.FleetPlugin{
		Node: p.Node.Name, Type: p.GetType(), Name: p.GetName(), Version: p.GetVersion(), State: string(p.State()), PublishedState: p.GetState(),
		Instance: p.GetInstance(), Endpoint: p.GetEndpoint(), Source: p.GetSource(), Roles: p.GetRoles(), Details: p.GetDetails(),
		RegisteredAt: p.GetRegisteredAt(), LastSeen: timestamp(p.Node.LastSeen), LastSeenBefore: timestamp(p.Node.SeenBefore),
		Current: p.GetCurrent(), Reason: reasons[p.State()], Unhealthy: p.GetUnhealthy(),
	}
	if p.Node.State != fleet.NodeReady {
		message.Reason = reasonOf(p.Node, pluginReasons)
	}
	return message
}

func (c service) DrainNode(ctx context.Context, request *patchbayv1.DrainNodeRequest) (*patchbayv1.DrainNodeResponse, error) {
	by := node.Name(c.Settings.Fleet)
	return &patchbayv1.DrainNodeResponse{}, c.operateNode(func(at *fleet.Cluster) error { return at.Drain(ctx, request.GetNode(), by) })
}

func (c service) UncordonNode(ctx context.Context, request *patchbayv1.UncordonNodeRequest) (*patchbayv1.UncordonNodeResponse, error) {
	return &patchbayv1.UncordonNodeResponse{}, c.operateNode(func(at *fleet.Cluster) error { return at.Uncordon(ctx, request.GetNode()) })
}

func (c service) ForgetNode(ctx context.Context, request *patchbayv1.ForgetNodeRequest) (*patchbayv1.ForgetNodeResponse, error) {
	return &patchbayv1.ForgetNodeResponse{}, c.operateNode(func(at *fleet.Cluster) error { return at.Forget(ctx, request.GetNode()) })
}

func (c service) operateNode(do func(at *fleet.Cluster) error) error {
	if c.Node == nil {
		return connect.NewError(connect.CodeFailedPrecondition, node.ErrNoFleet)
	}
	err := do(c.Node.Cluster)
	switch {
	case errors.Is(err, fleet.ErrNoNode):
		return connect.NewError(connect.CodeNotFound, fleet.ErrNoNode)
	case err != nil:
		return refused(err)
	}
	return nil
}

func (c service) ListLocks(ctx context.Context, _ *patchbayv1.ListLocksRequest) (*patchbayv1.ListLocksResponse, error) {
	if c.Node == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, node.ErrNoFleet)
	}
	locks, err := c.Node.Cluster.Locks(ctx)
	if err != nil {
		return nil, refused(err)
	}
	return &patchbayv1.ListLocksResponse{Locks: each(locks, func(l keys.LockState) *patchbayv1.FleetLock {
		return &patchbayv1.FleetLock{
			Type: untrusted.Valid(l.Lock.Type), Name: untrusted.Valid(l.Lock.Name), Node: l.Node, FencingToken: l.Token,
			Candidates: uint32(len(l.Nodes)),
		}
	})}, nil
}
