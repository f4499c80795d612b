package daemon

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// localWait bounds how long a call waits for a plugin of this node that is not confirmed yet, before it goes to another node.
const localWait = time.Second

// find is a fleet.Finder.
func (m *fleetMember) find(ctx context.Context, f fleet.Filter) ([]fleet.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, firstRead)
	defer cancel()
	instances, err := m.lookup.Find(ctx, f)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return instances, nil
}

// leader returns who holds the lock of a plugin.
func (m *fleetMember) leader(ctx context.Context, l fleet.Lock) (node string, exclusive bool, err error) {
	switch {
	case slices.Contains(m.exclusive, l.Type):
		if m.elector.Held(l) != nil {
			return m.node, true, nil
		}
	case m.unlocked.elsewhere(l) == "":
		return "", false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, firstRead)
	defer cancel()
	node, _, err = m.lookup.Holder(ctx, l)
	return node, true, err
}

// wantedLocks returns the locks of the plugins of this node that can be called.
func (m *fleetMember) wantedLocks(registry *dynamicplugins.Store) []fleet.Lock {
	var wanted []fleet.Lock
	for _, i := range registry.Instances("", "") {
		if slices.Contains(m.exclusive, i.Info.Type) && i.State == dynamicplugins.InstanceRegistered {
			wanted = append(wanted, fleet.Lock{Type: i.Info.Type, Name: i.Info.Name})
		}
	}
	return wanted
}

// guard returns the registry without the plugins whose locks the node does not hold. Calls to the others carry the token.
func (m *fleetMember) guard(registry proxy.Connector) proxy.Connector {
	if m == nil {
		return registry
	}
	return guardedRegistry{registry, m}
}

type guardedRegistry struct {
	proxy.Connector
	member *fleetMember
}

func (r guardedRegistry) Conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
	conn, err := r.Connector.Conn(ctx, ptype, name)
	if err != nil {
		return nil, err
	}
	lock := fleet.Lock{Type: ptype, Name: name}
	if !slices.Contains(r.member.exclusive, ptype) {
		if node := r.member.unlocked.elsewhere(lock); node != "" {
			return nil, status.Errorf(codes.FailedPrecondition, "node %s competes for its lock, and this node does not because its "+
				"fleet.exclusive does not list %s: give all nodes the same fleet.exclusive", node, ptype)
		}
		return conn, nil
	}
	hold := r.member.elector.Held(lock)
	if hold == nil {
		return nil, status.Errorf(codes.FailedPrecondition,
			"node %s does not hold its lock, and only one instance in the fleet may be active: "+
				"call it with patchbay call --fleet, which finds the node that does", r.member.node)
	}
	return hold.Conn(conn), nil
}

// isFleetCall says whether the metadata of a call ask for the fleet.
func isFleetCall(md grpcmetadata.MD) bool {
	return len(md.Get(proxy.FleetKey))+len(md.Get(proxy.NodeKey))+len(md.Get(proxy.LabelKey)) > 0
}

// direct returns the connection for a call to the fleet with these metadata.
func (m *fleetMember) direct(md grpcmetadata.MD, called patchbay.PluginName) (grpc.ClientConnInterface, error) {
	if m == nil {
		return nil, status.Error(codes.FailedPrecondition, errNoFleet.Error())
	}
	var p fleet.Policy
	if values := md.Get(proxy.NodeKey); len(values) > 0 {
		text, err := url.PathUnescape(values[0])
		if err != nil || len(values) > 1 {
			return nil, status.Errorf(codes.InvalidArgument, "the metadata key %s is there twice or not percent-encoded", proxy.NodeKey)
		}
		if err := fleet.ValidateNode(text); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		p.Node = text
	}
	for _, value := range md.Get(proxy.LabelKey) {
		text, err := url.PathUnescape(value)
		key, wanted, both := strings.Cut(text, "=")
		if err != nil || !both {
			return nil, status.Errorf(codes.InvalidArgument, "the metadata key %s is not percent-encoded KEY=VALUE", proxy.LabelKey)
		}
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[key] = wanted
	}
	if err := fleet.ValidateLabels(p.Labels); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return m.dialer.Dial(called.Type, called.Name, p), nil
}

// inFleet is a connector to plugins of the fleet, preferably of this node.
type inFleet struct{ *fleet.Dialer }

func (f inFleet) Conn(_ context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
	return f.Dial(ptype, name, fleet.Policy{}), nil
}

// dispensed returns the plugins that have a stable socket wherever in the fleet they are.
func (m *fleetMember) dispensed(plugins []string) map[patchbay.PluginName]proxy.Connector {
	all := map[patchbay.PluginName]proxy.Connector{}
	for _, text := range plugins {
		if name, ok := pluginName(text); ok && m != nil {
			all[name] = inFleet{m.dialer}
		}
	}
	return all
}
