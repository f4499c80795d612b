package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/proxy"
)

// Policy says to which node a call goes. The zero value stands for any: this node if it has the plugin, else one that has it, at random.
type Policy struct {
	// Node is the only node to which the call goes; empty for any.
	Node string
	// Sticky, if it is not empty, has calls with the same value go to the same node, for as long as that can be called. It holds among
	// programs too: the nodes are ranked by a hash of the value and their names.
	Sticky string
}

// Finder returns the instances that pass a filter and may be called. Those on nodes that are not ready are tried after all others.
// [Reader.Find] is one.
type Finder func(ctx context.Context, f Filter) ([]Instance, error)

// Find returns what Instances does, and what was there on nodes that are unreachable, whose presence may have ended because etcd was away.
// It waits, as long as ctx lasts, until the fleet has been read for the first time.
func (r *Reader) Find(ctx context.Context, f Filter) ([]Instance, error) {
	if err := r.Ready(ctx); err != nil {
		return nil, err
	}
	return r.callable(f), nil
}

// DialerConfig is what a [Dialer] works with.
type DialerConfig struct {
	// Find finds the instances in the fleet. It is required.
	Find Finder
	// Credentials are for the connections to other nodes; nil if there are none, so that only this node can be called.
	Credentials *Credentials
	// Node is the name of this node; empty for none.
	Node string
	// Local returns a connection to a plugin of this node, or an error if it has none that can be called; nil for none.
	Local func(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error)
	// Leader returns the node that holds the lock of a plugin. Exclusive is false for a plugin without a lock. Nil: there are no locks.
	Leader func(ctx context.Context, l Lock) (node string, exclusive bool, err error)
}

// connectTimeout bounds the time for a connection to a node, until the next node is taken.
const connectTimeout = 3 * time.Second

// Dialer makes connections to plugins of the fleet, through the daemons of their nodes. It has one connection to a node, whatever is called
// there. It may be used from several goroutines.
type Dialer struct {
	config DialerConfig
	pool   pool
}

// NewDialer returns a dialer, which connects to nothing yet. The caller calls Close.
func NewDialer(config DialerConfig) *Dialer {
	return &Dialer{config: config, pool: pool{credentials: config.Credentials, conns: map[poolKey]*pooled{}}}
}

// Close ends all calls and closes all connections.
func (d *Dialer) Close() { d.pool.close() }

// Targets returns the instances of a plugin that can be called in the fleet, one for each node, ordered by node. Whoever wants to call all
// of them dials each with [Policy.Node].
func (d *Dialer) Targets(ctx context.Context, ptype, name string) ([]Instance, error) {
	all, err := d.targets(ctx, Filter{Types: []string{ptype}, Names: []string{name}})
	return slices.DeleteFunc(all, Instance.away), err
}

func (d *Dialer) targets(ctx context.Context, f Filter) ([]Instance, error) {
	instances, err := d.config.Find(ctx, f)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(instances, func(a, b Instance) int { return strings.Compare(a.Node, b.Node) })
	return slices.CompactFunc(instances, func(a, b Instance) bool { return a.Node == b.Node }), nil
}

// Dial returns a connection to a plugin of the fleet. Type may also be a role. Each call chooses its node when it begins: of a plugin of
// which one instance in the fleet may be active, the node that holds its lock, else what the policy says. A node to which no connection can
// be made is passed over, at once if that is known already. Dial does not connect and does not block.
//
// A call belongs to the node to which it went: nothing that may have arrived is sent again. The errors of calls are gRPC statuses:
// codes.Unavailable if no node could be called, or if the connection was lost under the call, codes.PermissionDenied if the node does not
// let this one call, codes.FailedPrecondition if it does not hold the lock; others are the plugin's.
func (d *Dialer) Dial(ptype, name string, p Policy) *Conn {
	return &Conn{dialer: d, ptype: ptype, name: name, policy: p}
}

// Dial returns a connection as [Dialer.Dial] does, for programs that call one plugin. It fails if ctx ends before the fleet has been read.
// The caller closes it.
func Dial(ctx context.Context, ptype, name string, config DialerConfig, p Policy) (*Conn, error) {
	d := NewDialer(config)
	if _, err := d.Targets(ctx, ptype, name); err != nil {
		d.Close()
		return nil, fmt.Errorf("cannot dial plugin %s/%s in the fleet: %w", ptype, name, err)
	}
	c := d.Dial(ptype, name, p)
	c.owner = true
	return c, nil
}

// Conn is a connection to a plugin of the fleet. It may be used from several goroutines.
type Conn struct {
	dialer      *Dialer
	ptype, name string
	policy      Policy
	owner       bool // whether the dialer is closed with it
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// Close closes a connection that [Dial] made; of one that [Dialer.Dial] made it closes nothing.
func (c *Conn) Close() error {
	if c.owner {
		c.dialer.Close()
	}
	return nil
}

// String says what the connection leads to.
func (c *Conn) String() string {
	text := "plugin " + c.ptype + "/" + c.name
	if c.policy.Node != "" {
		return text + " on node " + c.policy.Node
	}
	return text + " in the fleet"
}

// Invoke implements grpc.ClientConnInterface.
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

// NewStream implements grpc.ClientConnInterface.
func (c *Conn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	candidates, err := c.dialer.candidates(ctx, c.ptype, c.name, c.policy)
	if err != nil {
		return nil, proxy.CannotCall(c.String(), err)
	}
	var reasons []string
	for _, next := range candidates {
		stream, err := next.open(ctx, desc, method, options...)
		if err == nil {
			return stream, nil
		}
		// Only what has not been sent anywhere is taken elsewhere: a stream that could not be opened has sent nothing.
		if ctx.Err() != nil || status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unknown {
			return nil, err
		}
		reasons = append(reasons, fmt.Sprintf("node %s: %s", next.node, status.Convert(err).Message()))
	}
	return nil, proxy.CannotCall(c.String(), unreachable(reasons))
}

// maxReasons is how many nodes an error speaks of.
const maxReasons = 3

func unreachable(reasons []string) error {
	if len(reasons) == 0 {
		return errors.New("no node that can be called has it registered")
	}
	text := strings.Join(reasons[:min(len(reasons), maxReasons)], "; ")
	if more := len(reasons) - maxReasons; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return errors.New(text)
}

// candidate is a node to which a call may go.
type candidate struct {
	node string
	open opener
	// failing says that its connection is known to fail.
	failing bool
}

// opener opens a stream for a call.
type opener func(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error)

// candidates returns the nodes to which a call may go, in the order in which they are tried.
func (d *Dialer) candidates(ctx context.Context, ptype, name string, p Policy) ([]candidate, error) {
	only := p.Node
	if d.config.Leader != nil {
		leader, exclusive, err := d.config.Leader(ctx, Lock{Type: ptype, Name: name})
		switch {
		case err != nil:
			return nil, err
		case exclusive && leader == "":
			return nil, errors.New("no node holds its lock; one that has it registered takes it within the time of its lease")
		case exclusive && only == "":
			only = leader
		}
	}
	var list []candidate
	if d.config.Local != nil && (only == "" || only == d.config.Node) {
		if conn, err := d.config.Local(ctx, ptype, name); err == nil {
			list = append(list, candidate{node: d.config.Node, open: conn.NewStream})
		} else if only != "" || ctx.Err() != nil {
			return nil, err
		}
	}
	if only != "" && len(list) > 0 {
		return list, nil
	}
	f := Filter{Types: []string{ptype}, Names: []string{name}}
	if only != "" {
		f.Nodes = []string{only}
	}
	instances, err := d.targets(ctx, f)
	if err != nil && len(list) == 0 {
		return nil, err
	}
	rank(instances, p.Sticky)
	var failing []candidate
	for _, i := range instances {
		if i.Node == d.config.Node && d.config.Local != nil {
			continue
		}
		if c := d.remote(i, ptype, name); c.failing || i.away() {
			failing = append(failing, c)
		} else {
			list = append(list, c)
		}
	}
	return append(list, failing...), nil
}

// rank orders instances as the policy says: by chance, or by the hash of the key and the name of the node.
func rank(instances []Instance, sticky string) {
	if sticky == "" {
		rand.Shuffle(len(instances), func(i, j int) { instances[i], instances[j] = instances[j], instances[i] })
		return
	}
	weight := func(node string) uint64 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d:%s%s", len(sticky), sticky, node)
		// The last bytes change only the low bits much; these have to reach the high ones.
		x := h.Sum64()
		x ^= x >> 33
		x *= 0xff51afd7ed558ccd
		return x ^ x>>33
	}
	slices.SortFunc(instances, func(a, b Instance) int { return cmp.Compare(weight(b.Node), weight(a.Node)) })
}

// remote returns the candidate for an instance on another node.
func (d *Dialer) remote(i Instance, ptype, name string) candidate {
	var conn *pooled
	var err error
	switch {
	case i.Address == "":
		err = errors.New("it takes no calls from other nodes; set fleet.serve.listen there")
	case d.config.Credentials == nil:
		err = errors.New("this node has no certificate for calls to others; set fleet.serve.cert, key and ca")
	default:
		conn, err = d.pool.get(poolKey{i.Node, i.Address})
	}
	failing := err != nil || conn.GetState() == connectivity.TransientFailure
	return candidate{node: i.Node, failing: failing, open: func(
		ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		if err := conn.connect(ctx); err != nil {
			return nil, err
		}
		return conn.NewStream(withMetadata(ctx, proxy.Route(ptype, name)...), desc, method, options...)
	}}
}

const (
	// idleNode is after which time without calls the connection to a node is closed; it is forgotten after twice that.
	idleNode = 5 * time.Minute
	// maxReconnect bounds the back-off of a connection that fails. Until it is over, its node is the last to be tried.
	maxReconnect = 5 * time.Second
	// nodeSilence and nodeAnswer are after which time of silence a node is asked whether it is there, and how long it may take: a call to a
	// node that lost its power fails after both together.
	nodeSilence, nodeAnswer = 10 * time.Second, 3 * time.Second
)

// poolKey is a node at an address.
type poolKey struct{ node, address string }

// pool has the connections to nodes.
type pool struct {
	credentials *Credentials

	mu    sync.Mutex
	conns map[poolKey]*pooled // nil after close
}

// pooled is a connection to a node.
type pooled struct {
	*grpc.ClientConn
	used time.Time // when it was last asked for; guarded by pool.mu
}

func (p *pool) get(k poolKey) (*pooled, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return nil, errors.New("the dialer of the fleet is closed")
	}
	now := time.Now()
	if c := p.conns[k]; c != nil {
		c.used = now
		return c, nil
	}
	for other, c := range p.conns {
		// One that is idle has no calls.
		if now.Sub(c.used) > 2*idleNode && c.GetState() != connectivity.Ready {
			delete(p.conns, other)
			_ = c.Close()
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+k.address,
		grpc.WithTransportCredentials(p.credentials.client(k.node)),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(idleNode),
		grpc.WithMaxHeaderListSize(proxy.MaxMetadataSize),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proxy.MaxMessageSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: nodeSilence, Timeout: nodeAnswer, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Backoff{Min: time.Second, Max: maxReconnect}.GRPC(),
			MinConnectTimeout: connectTimeout,
		}))
	if err != nil {
		return nil, err
	}
	c := &pooled{ClientConn: conn, used: now}
	p.conns[k] = c
	return c, nil
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// connect waits until the node can be called, or is known not to be. In the latter case, who opens a stream gets the reason.
func (c *pooled) connect(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if state := settle(waiting, c.ClientConn); state != connectivity.Idle && state != connectivity.Connecting {
		return nil
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Errorf(codes.Unavailable, "there is no connection to %s within %v", c.Target(), connectTimeout)
}
