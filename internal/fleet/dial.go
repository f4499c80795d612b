package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// Policy says to which node a call goes. The zero value means any node: this one if it has the plugin, else a random one that has it.
type Policy struct {
	Node   string            // the only node to which the call goes; empty for any
	Labels map[string]string // those that the node must have
}

// Finder returns the instances that pass a filter and may be called. The cost of [Lookup.Find] does not grow with the fleet; [Reader.Find]
// is for programs that read the whole fleet anyway.
type Finder func(ctx context.Context, f Filter) ([]Instance, error)

// Find returns the plugins that pass the filter and may be called: those that are registered and current on nodes that are ready, and on
// unreachable ones, whose presence may have expired only because etcd was unavailable. They are ordered by node. It blocks until the fleet
// has been read for the first time. If ctx ends first, the error says why; after Close it is [ErrClosed].
func (r *Reader) Find(ctx context.Context, f Filter) ([]Instance, error) {
	if err := r.Ready(ctx); err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	var found []Instance
	for _, name := range slices.Sorted(maps.Keys(r.members)) {
		found = append(found, r.members[name].callable(f)...)
	}
	return found, nil
}

// DialerConfig configures a [Dialer].
type DialerConfig struct {
	Find        Finder            // finds the instances in the fleet; it is required
	Credentials *Credentials      // for the connections to other nodes; nil for none, so that only this node can be called
	Node        string            // the name of this node; empty for none
	Labels      map[string]string // those of this node
	// Called, if it is not nil, is called when a call to another node has ended, with its error. It must not block.
	Called func(node string, err error)
	// Unhealthy reports whether a plugin of this node is unhealthy, so that this node is called after all others; nil for none.
	Unhealthy func(ptype, name string) bool
	// Local returns a connection to a plugin of this node, or an error if it has none that can be called; nil for none.
	Local func(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error)
	// MayOffer reports whether another node may offer a plugin; nil if every node may offer all. One that may not is not called for it,
	// whatever it says in etcd. The name of a node is that in the certificate which it has to present.
	MayOffer func(node, ptype, name string) bool
	// Leader returns the node that holds the lock of a plugin. Exclusive is false for a plugin without a lock. Nil if there are no locks.
	Leader func(ctx context.Context, l Lock) (node string, exclusive bool, err error)
}

// connectTimeout bounds the time for a connection to a node, until the next node is taken.
const connectTimeout = 3 * time.Second

// Dialer makes connections to plugins of the fleet, through the daemons of their nodes. All calls to a node share one connection. A Dialer
// is safe for concurrent use.
type Dialer struct {
	config DialerConfig
	pool   *pool
}

// NewDialer returns a dialer, which connects to nothing yet. The caller calls Close. It panics if the configuration has no Find.
func NewDialer(config DialerConfig) *Dialer {
	if config.Find == nil {
		panic("fleet: DialerConfig.Find is nil")
	}
	return &Dialer{config: config, pool: newPool(config.Credentials, config.Called)}
}

// Close ends all calls and closes all connections.
func (d *Dialer) Close() { d.pool.close() }

// targets returns the instances that pass the filter, one of each node, ordered by node.
func (d *Dialer) targets(ctx context.Context, f Filter) ([]Instance, error) {
	instances, err := d.config.Find(ctx, f)
	if err != nil {
		return nil, err
	}
	instances = slices.DeleteFunc(instances, func(i Instance) bool { return f.may != nil && !f.may(i.Node) }) // whatever the finder does
	slices.SortStableFunc(instances, func(a, b Instance) int { return strings.Compare(a.Node, b.Node) })
	return slices.CompactFunc(instances, func(a, b Instance) bool { return a.Node == b.Node }), nil
}

// filter returns what may take a call.
func (d *Dialer) filter(ptype, name string, p Policy) Filter {
	f := Filter{Types: []string{ptype}, Names: []string{name}, Labels: p.Labels, Few: few}
	if p.Node != "" {
		f.Nodes = []string{p.Node}
	}
	if d.config.MayOffer != nil {
		f.may = func(node string) bool { return d.config.MayOffer(node, ptype, name) }
	}
	return f
}

// Dial returns a connection to a plugin of the fleet. ptype may also be a role. Each call chooses its node when it begins: for an exclusive
// plugin the node that holds its lock, unless the policy names a node; for others, as the policy says. A node that cannot be connected to
// is skipped, at once if that is known already. Dial does not connect and does not block.
//
// A call stays with the node to which it was sent: nothing that may have arrived is sent again. The errors of calls are gRPC statuses:
// codes.Unavailable if no node could be called, or if the connection was lost during the call, codes.PermissionDenied if the node does not
// allow the call, codes.FailedPrecondition if the node does not hold the lock; others are the plugin's.
func (d *Dialer) Dial(ptype, name string, p Policy) *Conn {
	return &Conn{dialer: d, ptype: ptype, name: name, policy: p}
}

// Conn is a connection to a plugin of the fleet. It is safe for concurrent use.
type Conn struct {
	dialer      *Dialer
	ptype, name string
	policy      Policy
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// String returns the plugin and the policy.
func (c *Conn) String() string {
	where := " in the fleet"
	if c.policy.Node != "" {
		where = " on node " + c.policy.Node
	}
	text := "plugin " + c.ptype + "/" + c.name + where
	for i, key := range slices.Sorted(maps.Keys(c.policy.Labels)) {
		text += []string{" with label ", ", "}[min(i, 1)] + key + "=" + c.policy.Labels[key]
	}
	return text
}

// Invoke implements [grpc.ClientConnInterface]. [Dialer.Dial] lists its errors.
func (c *Conn) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream that was left early
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{}, method, options...)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil {
		return err
	}
	return stream.RecvMsg(reply)
}

// NewStream implements [grpc.ClientConnInterface]. [Dialer.Dial] lists its errors.
func (c *Conn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	var reasons []string
	by, _ := h2proxy.Requested(options)
	for next, err := range c.dialer.candidates(ctx, by.UID, c.ptype, c.name, c.policy) {
		if err != nil {
			return nil, proxy.CannotCall(c.String(), err)
		}
		stream, err := next.open(ctx, desc, method, options...)
		if err == nil {
			return stream, nil
		}
		// Only what has not been sent anywhere is taken elsewhere: a stream that could not be opened has sent nothing.
		if ctx.Err() != nil || status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unknown {
			return nil, err
		}
		reason := status.Convert(err).Message()
		if c.policy.Node == "" { // else String has the name of the node
			reason = "node " + next.node + ": " + reason
		}
		reasons = append(reasons, reason)
	}
	const most = 3
	switch more := len(reasons) - most; {
	case len(reasons) == 0:
		reasons = []string{"no node that can be called has it registered"}
	case more > 0:
		reasons = append(reasons[:most], fmt.Sprintf("and %d more", more))
	}
	return nil, proxy.CannotCall(c.String(), errors.New(strings.Join(reasons, "; ")))
}

// candidate is a node to which a call may go.
type candidate struct {
	node    string
	open    opener
	failing bool // its connection is known to fail
	last    int  // what speaks against it: the greater, the later it is tried
}

type opener func(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error)

// candidates returns the nodes to which a call may go, in the order in which they are tried. The fleet is asked when this node cannot take
// the call, and for more nodes when some cannot, by a user of this machine. An error ends the sequence: there are no candidates.
func (d *Dialer) candidates(ctx context.Context, by uint32, ptype, name string, p Policy) iter.Seq2[candidate, error] {
	return func(yield func(candidate, error) bool) {
		p, err := d.only(ctx, ptype, name, p)
		var own *candidate
		if err == nil {
			own, err = d.own(ctx, ptype, name, p)
		}
		if err != nil {
			yield(candidate{}, err)
			return
		}
		last := own != nil && p.Node == "" && d.config.Unhealthy != nil && d.config.Unhealthy(ptype, name)
		if own != nil && !last && !yield(*own, nil) || d.config.Local != nil && p.Node == d.config.Node && p.Node != "" {
			return
		}
		known := map[string]bool{}
		if own != nil {
			known[d.config.Node] = true
		}
		f := d.filter(ptype, name, p)
		f.by = by
		if d.others(ctx, f, known, yield) && last {
			yield(*own, nil)
		}
	}
}

// own returns this node as a candidate, nil if it is none. An error says why it cannot be called though it is the only one.
func (d *Dialer) own(ctx context.Context, ptype, name string, p Policy) (*candidate, error) {
	if d.config.Local == nil || p.Node != "" && p.Node != d.config.Node {
		return nil, nil //nolint:nilnil // it is none
	}
	err := errors.New("the node does not have the labels")
	if hasAll(d.config.Labels, p.Labels) {
		var conn grpc.ClientConnInterface
		if conn, err = d.config.Local(ctx, ptype, name); err == nil {
			return &candidate{node: d.config.Node, open: conn.NewStream}, nil
		}
	}
	if p.Node == "" && ctx.Err() == nil {
		err = nil // another node may have it
	}
	return nil, err
}

// only returns the policy with the node to which a call has to go, if there is one.
func (d *Dialer) only(ctx context.Context, ptype, name string, p Policy) (Policy, error) {
	if d.config.Leader != nil {
		leader, exclusive, err := d.config.Leader(ctx, Lock{Type: ptype, Name: name})
		switch {
		case err != nil:
			return p, err
		case exclusive && leader == "":
			return p, errors.New("no node holds its lock; one that has it registered takes it within the time of its lease")
		case exclusive:
			p.Node = cmp.Or(p.Node, leader)
		}
	}
	if may := d.config.MayOffer; p.Node != "" && p.Node != d.config.Node && may != nil && !may(p.Node, ptype, name) {
		return p, status.Errorf(codes.PermissionDenied, "fleet.offers does not let node %s offer it", p.Node)
	}
	return p, nil
}

// others yields the candidates on other nodes, and says whether more are wanted. Known are those that need not be yielded.
func (d *Dialer) others(ctx context.Context, f Filter, known map[string]bool, yield func(candidate, error) bool) bool {
	for ; ; f.Few *= 4 {
		instances, err := d.targets(ctx, f)
		if err != nil {
			if len(known) == 0 {
				yield(candidate{}, err)
			}
			return len(known) > 0
		}
		more := len(instances) >= f.Few
		instances = slices.DeleteFunc(instances, func(i Instance) bool {
			return known[i.Node] || i.Node == d.config.Node && d.config.Local != nil
		})
		rand.Shuffle(len(instances), func(i, j int) { instances[i], instances[j] = instances[j], instances[i] })
		for _, next := range d.sort(instances, f.Types[0], f.Names[0]) {
			if known[next.node] = true; !yield(next, nil) {
				return false
			}
		}
		if !more {
			return true
		}
	}
}

// sort puts those last that are not likely to take a call, or should not: first unhealthy plugins, then nodes that fail, then drained ones.
func (d *Dialer) sort(instances []Instance, ptype, name string) []candidate {
	all := make([]candidate, len(instances))
	for i, instance := range instances {
		all[i] = d.remote(instance, ptype, name)
		for bit, against := range []bool{instance.Unhealthy, all[i].failing || instance.away(), instance.Drained} {
			if against {
				all[i].last |= 1 << bit
			}
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.last, b.last) })
	return all
}

func (d *Dialer) remote(i Instance, ptype, name string) candidate {
	var unable error
	switch {
	case i.Address == "":
		unable = errors.New("it takes no calls from other nodes; set fleet.serve.listen there")
	case d.config.Credentials == nil:
		unable = errors.New("this node has no certificate for calls to others; set fleet.serve.cert, key and ca")
	}
	at := poolKey{i.Node, i.Address}
	return candidate{node: i.Node, failing: unable != nil || d.pool.failing(at), open: func(
		ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		if unable != nil {
			return nil, status.Error(codes.Unavailable, unable.Error())
		}
		given, _ := metadata.FromOutgoingContext(ctx)
		md := metadata.Join(given)
		maps.Copy(md, metadata.Pairs(proxy.Route(ptype, name)...))
		stream, err := d.pool.open(metadata.NewOutgoingContext(ctx, md), at, desc, method, options)
		if err == nil && i.cache != nil {
			i.cache.add(i.of)
		}
		return stream, err
	}}
}
