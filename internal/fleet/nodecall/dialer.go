// Package nodecall calls plugins on other nodes of a fleet: a [Dialer] selects the node of each call, and [Credentials] has the
// certificates with which nodes authenticate to each other.
package nodecall

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
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Policy selects the node of a call. The zero value selects any node: this one if it has the plugin, else a random one that has it.
type Policy struct {
	Node   string            // the name of the only node to call; empty for any node
	Labels map[string]string // the labels that the node must have
}

const (
	// connectTimeout bounds the time to connect to a node. After it, the next node is tried.
	connectTimeout = 3 * time.Second
	// few is the number of nodes that are looked up first for a call to any node.
	few = 16
)

// Dialer makes connections to plugins of the fleet, through the daemons of their nodes. All calls to a node share a connection. The
// exported fields are set before the first call; then a Dialer is safe for concurrent use. The owner calls Close. Functions may be nil,
// except Find.
type Dialer struct {
	// Find returns the instances that pass a filter and can be called.
	Find        func(ctx context.Context, f fleet.Filter) ([]fleet.Instance, error)
	Credentials *Credentials      // for calls to other nodes; nil if only this node can be called
	Node        string            // the name of this node; empty for none
	Labels      map[string]string // of this node
	// Called is called after each call to another node, with its error. It must not block.
	Called func(node string, err error)
	// Unhealthy reports whether a plugin of this node is unhealthy. Then this node is called after all others.
	Unhealthy func(ptype, name string) bool
	// Local returns a connection to a plugin of this node, or an error if it has none that can be called.
	Local func(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error)
	// MayOffer reports whether another node may offer a plugin; by default every node may offer all plugins. Otherwise the node is not
	// called for the plugin, even if it has published it. The name of the node is that in its certificate.
	MayOffer func(node, ptype, name string) bool
	// Leader returns the node that holds the lock of a plugin. exclusive is false for a plugin without a lock.
	Leader func(ctx context.Context, lock plugin.Name) (node string, exclusive bool, err error)

	closing sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[poolKey]*nodeConn // the connection to each node for new calls
	all    map[*nodeConn]bool    // all connections, with older ones that are closed after their last call
}

// Dial returns a connection to a plugin of the fleet, for calls that package proxy forwards. ptype may be a role. Each call selects its
// node when it begins. An exclusive plugin is called on the node that holds its lock, unless the policy names a node; for other plugins,
// the policy selects the node. A node to which no connection can be made is skipped, immediately if that is already known. Dial does not
// block.
//
// A call stays with the node to which it was sent: data that may have arrived is not sent again. The errors of calls are gRPC statuses:
// codes.Unavailable if no node could be called, or if the connection was lost during the call, codes.PermissionDenied if the node does not
// allow the call, codes.FailedPrecondition if the node does not hold the lock; other errors are those of the plugin.
func (d *Dialer) Dial(ptype, name string, p Policy) *Conn {
	return &Conn{dialer: d, ptype: ptype, name: name, policy: p}
}

// Conn is a connection to a plugin of the fleet. It is safe for concurrent use.
type Conn struct {
	dialer      *Dialer
	ptype, name string
	policy      Policy
}

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

// Invoke implements [grpc.ClientConnInterface]. It fails: package proxy forwards each call as a stream.
func (*Conn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unimplemented, "a connection to the fleet takes streams only")
}

// NewStream implements [grpc.ClientConnInterface]. [Dialer.Dial] lists its errors.
func (c *Conn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	var reasons []string
	by, _ := h2proxy.Requested(options)
	for next, err := range c.dialer.candidates(ctx, by.UID, c.ptype, c.name, c.policy) {
		if err != nil {
			return nil, proxy.CallError(c.String(), err)
		}
		stream, err := next.open(ctx, desc, method, options...)
		if err == nil {
			return stream, nil
		}
		// A stream that could not be opened has sent nothing, so another node can be tried.
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
	return nil, proxy.CallError(c.String(), errors.New(strings.Join(reasons, "; ")))
}

// candidate is a node that may take a call.
type candidate struct {
	node string
	open func(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error)
	rank int // nodes with a greater rank are tried later
}

// candidates returns the nodes that may take a call of a user, in the order in which they are tried. Other nodes are looked up if this one
// cannot take the call, and more nodes if the first of them cannot. If there are no candidates, the sequence ends with an error.
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
		last := own != nil && p.Node == "" && d.Unhealthy != nil && d.Unhealthy(ptype, name)
		if own != nil && !last && !yield(*own, nil) || d.Local != nil && p.Node == d.Node && p.Node != "" {
			return
		}
		tried := map[string]bool{}
		if own != nil {
			tried[d.Node] = true
		}
		f := fleet.Filter{Types: []string{ptype}, Names: []string{name}, Labels: p.Labels, Few: few, By: by}
		if p.Node != "" {
			f.Nodes = []string{p.Node}
		}
		if d.MayOffer != nil {
			f.May = func(node string) bool { return d.MayOffer(node, ptype, name) }
		}
		if d.others(ctx, f, tried, yield) && last {
			yield(*own, nil)
		}
	}
}

// own returns this node as a candidate; nil if it cannot take the call. The error is set if no other node can take it.
func (d *Dialer) own(ctx context.Context, ptype, name string, p Policy) (*candidate, error) {
	if d.Local == nil || p.Node != "" && p.Node != d.Node {
		return nil, nil //nolint:nilnil // There is no candidate.
	}
	err := errors.New("the node does not have the labels")
	if fleet.HasLabels(d.Labels, p.Labels) {
		var conn grpc.ClientConnInterface
		if conn, err = d.Local(ctx, ptype, name); err == nil {
			return &candidate{node: d.Node, open: conn.NewStream}, nil
		}
	}
	if p.Node == "" && ctx.Err() == nil {
		err = nil // the call may go to another node
	}
	return nil, err
}

// only returns the policy with the only node that may take the call, if there is one.
func (d *Dialer) only(ctx context.Context, ptype, name string, p Policy) (Policy, error) {
	if d.Leader != nil {
		leader, exclusive, err := d.Leader(ctx, plugin.Name{Type: ptype, Name: name})
		switch {
		case err != nil:
			return p, err
		case exclusive && leader == "":
			return p, errors.New("no node holds its lock; one that has it registered takes it within the time of its lease")
		case exclusive:
			p.Node = cmp.Or(p.Node, leader)
		}
	}
	if may := d.MayOffer; p.Node != "" && p.Node != d.Node && may != nil && !may(p.Node, ptype, name) {
		return p, status.Errorf(codes.PermissionDenied, "fleet.offers does not let node %s offer it", p.Node)
	}
	return p, nil
}

// others yields the other nodes that were not tried yet, and reports whether the caller wants more.
func (d *Dialer) others(ctx context.Context, f fleet.Filter, tried map[string]bool, yield func(candidate, error) bool) bool {
	for ; ; f.Few *= 4 {
		found, err := d.Find(ctx, f)
		if err != nil {
			if len(tried) == 0 {
				yield(candidate{}, err)
			}
			return len(tried) > 0
		}
		nodes := map[string]fleet.Instance{} // one instance of each
		for _, i := range slices.Backward(found) {
			if f.May == nil || f.May(i.Node.Name) {
				nodes[i.Node.Name] = i
			}
		}
		more := len(nodes) >= f.Few
		maps.DeleteFunc(nodes, func(node string, _ fleet.Instance) bool {
			return tried[node] || node == d.Node && d.Local != nil
		})
		for _, next := range d.sort(nodes, f.Types[0], f.Names[0]) {
			if tried[next.node] = true; !yield(next, nil) {
				return false
			}
		}
		if !more {
			return true
		}
	}
}

// sort returns the nodes in random order, except that nodes that should not or probably cannot take a call are last: first nodes whose
// plugin is unhealthy, then failing nodes, then drained nodes.
func (d *Dialer) sort(nodes map[string]fleet.Instance, ptype, name string) []candidate {
	var all []candidate
	for _, i := range nodes {
		all = append(all, d.remote(i, ptype, name))
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.rank, b.rank) })
	return all
}

func (d *Dialer) remote(i fleet.Instance, ptype, name string) candidate {
	var unable error
	switch {
	case i.Node.GetAddress() == "":
		unable = errors.New("it takes no calls from other nodes; set fleet.serve.listen there")
	case d.Credentials == nil:
		unable = errors.New("this node has no certificate for calls to others; set fleet.serve.cert, key and ca")
	}
	at, rank := poolKey{i.Node.Name, i.Node.GetAddress()}, 0
	isFailing := unable != nil || d.isFailing(at) || i.Node.State == fleet.NodeUnreachable
	for bit, isBad := range []bool{i.GetUnhealthy(), isFailing, i.Node.Cordon.Drained} {
		if isBad {
			rank |= 1 << bit
		}
	}
	return candidate{node: i.Node.Name, rank: rank, open: func(
		ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		if unable != nil {
			return nil, status.Error(codes.Unavailable, unable.Error())
		}
		given, _ := metadata.FromOutgoingContext(ctx)
		md := metadata.Join(given)
		maps.Copy(md, metadata.Pairs(proxy.Route(ptype, name)...))
		stream, err := d.open(metadata.NewOutgoingContext(ctx, md), at, desc, method, options)
		if err == nil {
			i.Called()
		}
		return stream, err
	}}
}
