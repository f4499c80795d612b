package node

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	grpcmetadata "google.golang.org/grpc/metadata"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// localWait bounds how long a call waits for a plugin of this node that is not confirmed yet. After it, the call goes to another node.
	localWait = time.Second
	// findTimeout bounds the search for the nodes of a plugin. It is shorter than the time that callers wait for an answer, so that they
	// get the reason.
	findTimeout = 4 * time.Second
)

// find implements [nodecall.Dialer].Find.
func (n *Node) find(ctx context.Context, f fleet.Filter) ([]fleet.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	instances, err := n.Lookup.Find(ctx, f)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return instances, nil
}

// leader returns the node that holds the lock of a plugin.
func (n *Node) leader(ctx context.Context, l plugin.Name) (node string, exclusive bool, err error) {
	switch {
	case slices.Contains(n.Fleet.Exclusive, l.Type):
		if n.Elector.Held(l) != nil {
			return n.name, true, nil
		}
	case n.settings.elsewhere(l) == "":
		return "", false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	node, _, err = n.Lookup.Holder(ctx, l)
	return node, true, err
}

// wantedLocks returns the locks of the plugins of this node that can be called.
func (n *Node) wantedLocks() []plugin.Name {
	var wanted []plugin.Name
	for _, i := range n.Registry.Instances("", "") {
		if slices.Contains(n.Fleet.Exclusive, i.Info.Type) && i.State == dynamicplugins.InstanceRegistered {
			wanted = append(wanted, plugin.Name{Type: i.Info.Type, Name: i.Info.Name})
		}
	}
	return wanted
}

// Exclusive returns the registry without the plugins whose locks the node does not hold. Calls to the others carry the fencing token. It
// can be called on a nil Node.
func (n *Node) Exclusive(registry proxy.Connector) proxy.Connector {
	if n == nil {
		return registry
	}
	return exclusiveRegistry{registry, n}
}

type exclusiveRegistry struct {
	proxy.Connector
	node *Node
}

func (r exclusiveRegistry) Conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
	conn, err := r.Connector.Conn(ctx, ptype, name)
	if err != nil {
		return nil, err
	}
	lock := plugin.Name{Type: ptype, Name: name}
	if !slices.Contains(r.node.Fleet.Exclusive, ptype) {
		if other := r.node.settings.elsewhere(lock); other != "" {
			return nil, status.Errorf(codes.FailedPrecondition, "node %s competes for its lock, and this node does not because its "+
				"fleet.exclusive does not list %s: give all nodes the same fleet.exclusive", other, ptype)
		}
		return conn, nil
	}
	hold := r.node.Elector.Held(lock)
	if hold == nil {
		return nil, status.Errorf(codes.FailedPrecondition,
			"node %s does not hold its lock, and only one instance in the fleet may be active: "+
				"call it with patchbay call --fleet, which finds the node that does", r.node.name)
	}
	return hold.Conn(conn), nil
}

// Route returns the connection for a call whose metadata select a plugin of the fleet. It can be called on a nil Node.
func (n *Node) Route(md grpcmetadata.MD, ptype, name string) (grpc.ClientConnInterface, error) {
	if n == nil {
		return nil, status.Error(codes.FailedPrecondition, ErrNoFleet.Error())
	}
	policy, err := policyOf(md)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return n.dialer.Dial(ptype, name, policy), nil
}

// IsFleetCall reports whether the metadata of a call select a plugin of the fleet.
func IsFleetCall(md grpcmetadata.MD) bool {
	return len(md.Get(proxy.FleetKey))+len(md.Get(proxy.NodeKey))+len(md.Get(proxy.LabelKey)) > 0
}

// policyOf returns the nodes that the metadata of a call select.
func policyOf(md grpcmetadata.MD) (p nodecall.Policy, err error) {
	if values := md.Get(proxy.NodeKey); len(values) > 0 {
		if p.Node, err = url.PathUnescape(values[0]); err != nil || len(values) > 1 {
			return p, fmt.Errorf("the metadata key %s is there twice or not percent-encoded", proxy.NodeKey)
		}
		if err := keys.ValidateNode(p.Node); err != nil {
			return p, err
		}
	}
	for _, value := range md.Get(proxy.LabelKey) {
		text, err := url.PathUnescape(value)
		key, wanted, both := strings.Cut(text, "=")
		if err != nil || !both {
			return p, fmt.Errorf("the metadata key %s is not percent-encoded KEY=VALUE", proxy.LabelKey)
		}
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[key] = wanted
	}
	return p, keys.ValidateLabels(p.Labels)
}

// mayOffer reports whether a node may offer a plugin.
func (n *Node) mayOffer(node, ptype, name string) bool {
	offers := *n.offers.Load()
	return len(offers) == 0 || slices.ContainsFunc(offers, func(o config.FleetOffer) bool {
		return access.MatchAny([]string{strings.ToLower(o.Node)}, strings.ToLower(node)) && access.MatchAny(o.Types, ptype) &&
			access.MatchAny(o.Names, name)
	})
}

// fleetConnector connects to plugins of the fleet, preferably of this node.
type fleetConnector struct{ *nodecall.Dialer }

func (c fleetConnector) Conn(_ context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
	return c.Dial(ptype, name, nodecall.Policy{}), nil
}

// Connector returns a connector to plugins of the whole fleet.
func (n *Node) Connector() proxy.Connector { return fleetConnector{n.dialer} }
