package daemon

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/proxy"
)

// localWait bounds how long a call waits for a plugin of this node that is not confirmed yet, before it goes to another node.
const localWait = time.Second

// find is a fleet.Finder.
func (m *fleetMember) find(ctx context.Context, f fleet.Filter) ([]fleet.Instance, error) {
	reader, release, err := m.acquire()
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, firstRead)
	defer cancel()
	instances, err := reader.Find(ctx, f)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return instances, nil
}

// leader returns who holds the lock of a plugin.
func (m *fleetMember) leader(ctx context.Context, l fleet.Lock) (node string, exclusive bool, err error) {
	if !slices.Contains(m.exclusive, l.Type) {
		return "", false, nil
	}
	if m.elector.Held(l) != nil {
		return m.node, true, nil
	}
	leader, err := m.elector.Leader(ctx, l)
	return leader.Node, true, err
}

// locks returns the locks of the plugins of this node that can be called.
func (m *fleetMember) locks(registry *dynamicplugins.Store) []fleet.Lock {
	var locks []fleet.Lock
	for _, i := range registry.Instances("", "") {
		if slices.Contains(m.exclusive, i.Info.Type) && i.State == dynamicplugins.InstanceRegistered {
			locks = append(locks, fleet.Lock{Type: i.Info.Type, Name: i.Info.Name})
		}
	}
	return locks
}

// guard returns the registry without the plugins whose locks the node does not hold. Calls to the others carry the token.
func (m *fleetMember) guard(registry connector) connector {
	if m == nil || m.elector == nil {
		return registry
	}
	return guardedRegistry{registry, m}
}

type guardedRegistry struct {
	connector
	member *fleetMember
}

func (r guardedRegistry) Conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
	conn, err := r.connector.Conn(ctx, ptype, name)
	if err != nil || !slices.Contains(r.member.exclusive, ptype) {
		return conn, err
	}
	hold := r.member.elector.Held(fleet.Lock{Type: ptype, Name: name})
	if hold == nil {
		return nil, status.Errorf(codes.FailedPrecondition,
			"node %s does not hold its lock, and only one instance in the fleet may be active: "+
				"call it with patchbay call --fleet, which finds the node that does", r.member.node)
	}
	return hold.Conn(conn), nil
}

// isFleetCall says whether the metadata of a call ask for the fleet.
func isFleetCall(md grpcmetadata.MD) bool {
	return len(md.Get(proxy.FleetKey)) > 0 || len(md.Get(proxy.NodeKey)) > 0
}

// direct returns the connection for a call to the fleet with these metadata.
func (m *fleetMember) direct(md grpcmetadata.MD, called patchbay.PluginName) (grpc.ClientConnInterface, error) {
	if m == nil {
		return nil, status.Error(codes.FailedPrecondition, errNoFleet.Error())
	}
	var p fleet.Policy
	for _, part := range []struct {
		key string
		to  *string
	}{{proxy.FleetKey, &p.Sticky}, {proxy.NodeKey, &p.Node}} {
		values := md.Get(part.key)
		if len(values) == 0 {
			continue
		}
		text, err := url.PathUnescape(values[0])
		if err != nil || len(values) > 1 {
			return nil, status.Errorf(codes.InvalidArgument, "the metadata key %s is there twice or not percent-encoded", part.key)
		}
		*part.to = text
	}
	if p.Node != "" {
		if err := fleet.ValidateNode(p.Node); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	return m.dialer.Dial(called.Type, called.Name, p), nil
}

// leaders returns who holds which lock, for people.
func (m *fleetMember) leaders(ctx context.Context) (map[fleet.Lock]fleet.Leader, error) {
	if m.elector == nil {
		return nil, nil //nolint:nilnil // there are no locks
	}
	leaders, err := m.elector.Leaders(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w; see the log of the daemon", err)
	}
	return leaders, nil
}
