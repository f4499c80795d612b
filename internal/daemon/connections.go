package daemon

import (
	"context"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/quota"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// maxUserConns bounds the open connections at the control socket, and those at the stable sockets, of each user; maxControlConns, which
	// 10,000 subscribers do not meet, and maxStableConns those of all but root and the daemon's user. Where few files may be open, the bounds
	// are an eighth of those for a user, and a quarter in all at the control socket and at the stable sockets each. Three eighths are for
	// plugins, see boundPlugins, and a thirty-second for connections to plugins that only have calls to end; of the rest, callers on other
	// nodes leave two thirds at least for root.
	maxUserConns, maxControlConns, maxStableConns = 1024, 10 << 10, 4096
	// maxAddressConns and maxNodeConns bound the connections for calls from other nodes, of each address and of all. Where few files may be
	// open, the bounds are a sixty-fourth of them and what the others leave but for an eighth, at least a thirty-second.
	maxAddressConns, maxNodeConns = 256, 16 << 10
	// maxStrangerConns and maxStrangersConns bound those at the control socket of users without a role, who are only told that they have none.
	maxStrangerConns, maxStrangersConns = 16, 64
	// strangerTime is how long a user without a role may have a connection: to be told so takes no longer.
	strangerTime = 5 * time.Second
)

// callerBuffer is how much the kernel keeps for a caller on this machine who does not read, nodeBuffer for one on another, which may be far
// away. It counts to the memory of the daemon's control group, and is twice as much as is asked for. As long as no more than maxUserLarge
// connections of a user have it, and maxLarge in all, a connection has largeBuffer: with a small one a long stream is a third slower,
// because the daemon and its caller wait for each other.
const (
	callerBuffer, largeBuffer, nodeBuffer = 32 << 10, 208 << 10, 256 << 10
	maxUserLarge, maxLarge                = 32, 128
)

// connections bounds how many connections callers may hold at the daemon's sockets, which cost a descriptor each even if they are idle.
// What is beyond a bound is closed at once.
type connections struct {
	self    uint32 // the user of the daemon
	log     *slog.Logger
	refused *prometheus.CounterVec
	// budget bounds the calls of plugins and what of them waits in memory; nil for the default, of which nothing is reported.
	budget *h2proxy.Budget
	// nodeBudget does that for calls from other nodes, which so keep nobody on this node from his plugins.
	nodeBudget *h2proxy.Budget

	// They are separate, so that callers of plugins keep nobody from the control socket.
	control, strangers, stable, nodes *quota.Pool
	// large counts the connections with a large buffer, those of root and the daemon's user too.
	large *quota.Pool
}

func newConnections(self uint32, files int, refused *prometheus.CounterVec, log *slog.Logger) *connections {
	return &connections{
		self: self, log: log, refused: refused,
		control:   quota.New(quota.Limits{User: min(maxUserConns, files/8), Total: min(maxControlConns, files/4)}, nil),
		strangers: quota.New(quota.Limits{User: maxStrangerConns, Total: maxStrangersConns}, nil),
		stable:    quota.New(quota.Limits{User: min(maxUserConns, files/8), Total: min(maxStableConns, files/4)}, nil),
		nodes:     quota.New(quota.Limits{User: min(maxAddressConns, max(files/64, 1)), Total: maxNodes(files)}, nil),
		large:     quota.New(quota.Reserved(maxUserLarge, maxLarge), exempt(self)),
	}
}

// exempt reports which users are root or the daemon's.
func exempt(self uint32) func(uid uint32) bool {
	return func(uid uint32) bool { return uid == 0 || uid == self }
}

// maxNodes returns how many connections there may be for calls from other nodes, if so many files may be open.
func maxNodes(files int) int {
	others := min(maxControlConns, files/4) + min(maxStableConns, files/4) + 3*(files/8) + files/32 + files/8
	return min(maxNodeConns, max(files/32, files-others, 1))
}

// nodeLimits bound the calls from other nodes. One node has no more than the streams of one connection, see fleetStreams, if it keeps to
// what it is told.
func nodeLimits(files int) h2proxy.Limits {
	ofNode := h2proxy.DefaultLimits.Cancels.All // its users share a connection
	return h2proxy.Limits{
		UserBytes: 16 << 20, Bytes: 48 << 20, UserCalls: 2048, Calls: 8192, Leaving: leaving(files),
		Cancels: h2proxy.CancelRates{Conn: ofNode, User: ofNode, All: 2 * ofNode},
	}
}

// boundPlugins bounds how many plugins users may have, and all but root and the daemon's user: a plugin takes one descriptor for its
// connection and one for its stable socket, and before that one while it is asked.
func boundPlugins(b reconciler.Bounds, files int) reconciler.Bounds {
	b.TotalPlugins = max(files/8, 1)
	b.UserPlugins = max(b.TotalPlugins/4*3, 1)
	return b
}

// callLimits bound the calls of plugins by callers on this node.
func callLimits(files int) h2proxy.Limits {
	limits := h2proxy.DefaultLimits
	limits.Leaving = leaving(files)
	return limits
}

// leaving is how many connections to plugins may only have calls to end, of callers on this node and of those on others each.
func leaving(files int) int { return max(files/64, 1) }

// newBudget bounds what calls have in memory, whichever way they come, and how many there are. What it does not give is counted, and logged
// once until half of it is back; what says of which calls.
func newBudget(what string, limits h2proxy.Limits, self uint32, limited *prometheus.CounterVec, log *slog.Logger) *h2proxy.Budget {
	return h2proxy.NewBudget(limits, self, func(uid uint32, why h2proxy.Reason, first bool) {
		limited.WithLabelValues(string(why)).Inc()
		if first {
			log.Warn(what+" "+why.Consequence(), "uid", uid, "reason", string(why))
		}
	})
}

// limit returns a listener that hands out the connections of l which are within the bounds. With a guard, users without a role are
// strangers.
func (c *connections) limit(l net.Listener, socket string, g *access.Authorizer) net.Listener {
	return &boundedListener{l, socket, c, g}
}

type boundedListener struct {
	net.Listener
	socket string
	conns  *connections
	guard  *access.Authorizer // nil if everybody who can connect may call, or shows later who it is
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if held := l.hold(conn); held != nil {
			l.conns.boundBuffer(held)
			if l.guard != nil && l.conns.budget != nil {
				held.brake = l.conns.budget.Brake(held.Conn, held.uid)
				held.Conn = held.brake
			}
			return held, nil
		}
		_ = conn.Close() // nothing was said
	}
}

// boundBuffer bounds what the kernel keeps for a caller.
func (c *connections) boundBuffer(held *heldConn) {
	switch conn := held.Conn.(type) {
	case *net.UnixConn:
		_ = conn.SetWriteBuffer(c.bufferOf(held))
	case *net.TCPConn:
		_ = conn.SetWriteBuffer(nodeBuffer)
	}
}

// bufferOf returns the size of the buffer of a caller on this machine, which counts until the connection is closed.
func (c *connections) bufferOf(held *heldConn) int {
	held.large = c.large.Grant(held.uid)
	if held.large.Take(1) != nil {
		return callerBuffer
	}
	return largeBuffer
}

// hold takes a connection in; nil if it is beyond a bound.
func (l *boundedListener) hold(conn net.Conn) *heldConn {
	c, stranger, held := l.conns, false, &heldConn{Conn: conn, uid: access.UnknownUser}
	pool := c.stable
	unixConn, local := conn.(*net.UnixConn)
	switch {
	case l.guard != nil:
		held.caller = l.guard.Identify(conn)
		held.uid = held.caller.UID()
		if pool, stranger = c.control, l.guard.IsStranger(held.caller); stranger {
			pool = c.strangers
		}
	case local:
		if peer, err := sock.PeerOf(unixConn); err == nil {
			held.uid = peer.UID
		}
	default:
		pool, held.uid = c.nodes, addressUser(conn.RemoteAddr())
	}
	if held.uid == 0 || held.uid == c.self {
		return held
	}
	held.slot = pool.Grant(held.uid)
	if refusal := held.slot.Take(1); refusal != nil {
		c.refused.WithLabelValues(l.socket, string(refusal.Reason)).Inc()
		if refusal.First {
			who := slog.Any("uid", held.uid)
			if pool == c.nodes {
				who = slog.Any("address", conn.RemoteAddr())
			}
			c.log.Warn("closing connections at once because too many are open; stop what holds them", "socket", l.socket, who,
				"ofUser", refusal.OfUser, "mostOfUser", pool.Limits().User, "ofAll", refusal.OfAll, "mostOfAll", pool.Limits().Total)
		}
		return nil
	}
	if stranger {
		held.expires = time.AfterFunc(strangerTime, func() { _ = conn.Close() }) // its server notices
	}
	return held
}

// addressUser stands for the callers at an address of another machine where callers are counted by user. Of IPv6, everybody has 64 bits.
func addressUser(addr net.Addr) uint32 {
	sum := fnv.New32a()
	if from, err := netip.ParseAddrPort(addr.String()); err == nil {
		bits := 64
		if from.Addr().Unmap().Is4() {
			bits = 32
		}
		prefix, _ := from.Addr().Unmap().WithZone("").Prefix(bits) // it has so many bits
		_, _ = io.WriteString(sum, prefix.String())                // it never fails
	}
	return notAUser(sum.Sum32())
}

// notAUser makes a number one that no user of the machine has: those of containers too are lower.
func notAUser(n uint32) uint32 { return n | 1<<31 }

// heldConn is a connection that counts until it is closed.
type heldConn struct {
	net.Conn
	uid         uint32
	caller      *access.Caller // nil if nobody looked
	brake       *h2proxy.Brake // nil if the server that reads it knows itself when to pause
	slot, large *quota.Grant
	expires     *time.Timer // closes the connection of a user without a role; nil for others
}

// ConnContext returns the context of the requests on the connection, see [http.Server].
func (c *heldConn) ConnContext(ctx context.Context) context.Context {
	if c.brake != nil {
		ctx = c.brake.Attach(ctx)
	}
	return access.WithCaller(ctx, c.caller)
}

// UID returns the user who connected, for package proxy.
func (c *heldConn) UID() uint32 { return c.uid }

func (c *heldConn) Close() error {
	if c.expires != nil {
		c.expires.Stop()
	}
	defer c.slot.Release()
	defer c.large.Release()
	return c.Conn.Close()
}
