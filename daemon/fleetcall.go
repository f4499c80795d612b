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

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/proxy"
)

// localWait bounds how long a call waits for a plugin of this node that is not confirmed yet, before it goes to another node.
const localWait = time.Second

// fleetCalls makes calls to the fleet, and keeps the locks of plugins.
type fleetCalls struct {
	member    *fleetMember
	dialer    *fleet.Dialer
	elector   *fleet.Elector // nil if there are no locks
	exclusive []string
}

// newFleetCalls returns what calls the fleet. The caller calls close.
func newFleetCalls(m *fleetMember, c FleetConfig, registry *dynamicplugins.Store) (*fleetCalls, error) {
	calls := &fleetCalls{member: m, exclusive: c.Exclusive}
	config := fleet.DialerConfig{Find: m.find, Credentials: m.credentials, Node: m.node}
	if len(c.Exclusive) > 0 {
		var err error
		calls.elector, err = fleet.NewElector(m.cluster, fleet.ElectorConfig{Space: c.Space, Node: m.node, TTL: c.Presence, Logger: m.log})
		if err != nil {
			return nil, err
		}
		config.Leader = calls.leader
	}
	local := calls.guard(registry)
	config.Local = func(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
		ctx, cancel := context.WithTimeout(ctx, localWait)
		defer cancel()
		return connTo(ctx, local, ptype, name)
	}
	calls.dialer = fleet.NewDialer(config)
	return calls, nil
}

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
func (c *fleetCalls) leader(ctx context.Context, l fleet.Lock) (node string, exclusive bool, err error) {
	if !slices.Contains(c.exclusive, l.Type) {
		return "", false, nil
	}
	if c.elector.Held(l) != nil {
		return c.member.node, true, nil
	}
	leader, err := c.elector.Leader(ctx, l)
	return leader.Node, true, err
}

// stand has the node compete for the locks of its plugins until ctx ends. Changes tells that these may have changed.
func (c *fleetCalls) stand(ctx context.Context, registry *dynamicplugins.Store, changes <-chan struct{}) {
	if c.elector == nil {
		return
	}
	c.member.running.Go(func() { c.elector.Run(ctx) })
	c.member.running.Go(func() {
		for {
			c.elector.Stand(c.locks(registry))
			select {
			case <-changes:
			case <-ctx.Done():
				return
			}
		}
	})
}

// locks returns the locks of the plugins of this node that can be called.
func (c *fleetCalls) locks(registry *dynamicplugins.Store) []fleet.Lock {
	var locks []fleet.Lock
	for _, i := range registry.Instances("", "") {
		if slices.Contains(c.exclusive, i.Info.Type) && i.State == dynamicplugins.InstanceRegistered {
			locks = append(locks, fleet.Lock{Type: i.Info.Type, Name: i.Info.Name})
		}
	}
	return locks
}

// guard returns the registry without the plugins whose locks the node does not hold. Calls to the others carry the token.
func (c *fleetCalls) guard(registry connector) connector {
	if c == nil || c.elector == nil {
		return registry
	}
	return guardedRegistry{registry, c}
}

type guardedRegistry struct {
	connector
	calls *fleetCalls
}

// Conn implements connector.
func (r guardedRegistry) Conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
	conn, err := r.connector.Conn(ctx, ptype, name)
	if err != nil || !slices.Contains(r.calls.exclusive, ptype) {
		return conn, err
	}
	hold := r.calls.elector.Held(fleet.Lock{Type: ptype, Name: name})
	if hold == nil {
		return nil, status.Errorf(codes.FailedPrecondition,
			"node %s does not hold its lock, and only one instance in the fleet may be active: "+
				"call it with patchbay call --fleet, which finds the node that does", r.calls.member.node)
	}
	return hold.Conn(conn), nil
}

// isFleetCall says whether the metadata of a call ask for the fleet.
func isFleetCall(md grpcmetadata.MD) bool {
	return len(md.Get(proxy.FleetKey)) > 0 || len(md.Get(proxy.NodeKey)) > 0
}

// direct returns the connection for a call to the fleet with these metadata.
func (c *fleetCalls) direct(md grpcmetadata.MD, ptype, name string) (grpc.ClientConnInterface, error) {
	if c == nil {
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
	return c.dialer.Dial(ptype, name, p), nil
}

func (c *fleetCalls) close() error {
	if c != nil {
		c.dialer.Close()
	}
	return nil
}

// leaders returns who holds which lock, for people.
func (c *fleetCalls) leaders(ctx context.Context) (map[fleet.Lock]fleet.Leader, error) {
	if c == nil || c.elector == nil {
		return nil, nil //nolint:nilnil // there are no locks
	}
	leaders, err := c.elector.Leaders(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w; see the log of the daemon", err)
	}
	return leaders, nil
}
