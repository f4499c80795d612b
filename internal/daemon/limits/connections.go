// Package limits bounds the resources that callers of the daemon may hold: connections at each of its sockets, calls of plugins, and
// plugins. The bounds depend on how many files the daemon may open.
package limits

import (
	"context"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/quota"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// Bounds for the connections on this machine. maxUserConns applies to each user at the control socket, and separately at all stable
	// sockets together. maxControlConns and maxStableConns apply to all users except root and the daemon's user; 10,000 subscribers to
	// events stay below them. If the daemon may open only a few files, each user may have an eighth of them at each kind of socket, and all
	// users a quarter. Plugins may use three eighths, see [Plugins], and connections that exist only for calls that are ending a
	// thirty-second. Callers on other nodes leave at least two thirds of the rest to root.
	maxUserConns, maxControlConns, maxStableConns = 1024, 10 << 10, 4096
	// Bounds for the connections from other nodes: of each address, and of all addresses. If the daemon may open only a few files, an
	// address may have a sixty-fourth of them. All addresses may have what the other bounds leave, except an eighth, but at least a
	// thirty-second.
	maxAddressConns, maxNodeConns = 256, 16 << 10
	// Bounds for the connections at the control socket of each user without a role, and of all such users. Their calls are only refused.
	maxStrangerConns, maxStrangersConns = 16, 64
	// strangerTime bounds a connection of a user without a role: it is only needed for the refusal.
	strangerTime = 5 * time.Second
)

// Sizes of the kernel's write buffer for a connection: callerBuffer for a caller on this machine, nodeBuffer for a caller on another
// machine. The kernel reserves twice as much, and counts it to the memory of the daemon's control group. Up to maxUserLarge connections of
// a user, and maxLarge in total, have largeBuffer instead of callerBuffer: with a small buffer, a long stream is a third slower, because
// the daemon and the caller wait for each other.
const (
	callerBuffer, largeBuffer, nodeBuffer = 32 << 10, 208 << 10, 256 << 10
	maxUserLarge, maxLarge                = 32, 128
)

// Connections bounds how many connections each user, and all users together, may have at the daemon's sockets. Each connection needs a
// descriptor, even if it is idle. Connections beyond a bound are closed immediately.
type Connections struct {
	self    uint32 // the user of the daemon
	log     *slog.Logger
	refused *prometheus.CounterVec
	// budget delays reading from control connections on which too many calls are canceled; nil for no delay.
	budget *h2proxy.Budget

	// The pools are separate, so that callers of plugins do not block the control socket.
	control, strangers, stable, nodes *quota.Pool
	// large counts the connections with a large buffer, including those of root and the daemon's user.
	large *quota.Pool
}

// NewConnections returns the bounds for a daemon that runs as the user self and may open the given number of files.
func NewConnections(self uint32, files int, budget *h2proxy.Budget, refused *prometheus.CounterVec, log *slog.Logger) *Connections {
	return &Connections{
		self: self, log: log, budget: budget, refused: refused,
		control:   quota.New(quota.Limits{User: min(maxUserConns, files/8), Total: min(maxControlConns, files/4)}, nil),
		strangers: quota.New(quota.Limits{User: maxStrangerConns, Total: maxStrangersConns}, nil),
		stable:    quota.New(quota.Limits{User: min(maxUserConns, files/8), Total: min(maxStableConns, files/4)}, nil),
		nodes:     quota.New(quota.Limits{User: min(maxAddressConns, max(files/64, 1)), Total: maxNodes(files)}, nil),
		large:     quota.New(quota.Reserved(maxUserLarge, maxLarge), Exempt(self)),
	}
}

// Exempt returns a function that reports whether a user is root or the daemon's.
func Exempt(self uint32) func(uid uint32) bool {
	return func(uid uint32) bool { return uid == 0 || uid == self }
}

// maxNodes returns how many connections from other nodes there may be in total.
func maxNodes(files int) int {
	others := min(maxControlConns, files/4) + min(maxStableConns, files/4) + 3*(files/8) + files/32 + files/8
	return min(maxNodeConns, max(files/32, files-others, 1))
}

// NodeCalls returns the bounds of the calls from other nodes.
func NodeCalls(files int) h2proxy.Limits {
	ofNode := h2proxy.DefaultLimits.Cancels.All // the users of a node share a connection
	return h2proxy.Limits{
		UserBytes: 16 << 20, Bytes: 48 << 20, UserCalls: 2048, Calls: 8192, Leaving: leaving(files),
		Cancels: h2proxy.CancelRates{Conn: ofNode, User: ofNode, All: 2 * ofNode},
	}
}

// Plugins returns b with bounds for the number of plugins of each user, and of all users except root and the daemon's user. A plugin needs
// two descriptors: for its connection, and for its stable socket.
func Plugins(b plugin.Bounds, files int) plugin.Bounds {
	b.TotalPlugins = max(files/8, 1)
	b.UserPlugins = max(b.TotalPlugins/4*3, 1)
	return b
}

// Calls returns the bounds of calls to plugins by callers on this machine.
func Calls(files int) h2proxy.Limits {
	l := h2proxy.DefaultLimits
	l.Leaving = leaving(files)
	return l
}

// leaving returns how many connections to plugins may exist only because calls on them have not ended yet. It is the bound for callers on
// this machine, and separately for other nodes.
func leaving(files int) int { return max(files/64, 1) }

// NewBudget returns a budget for calls and their bytes in memory. Each refusal is counted in limited. For each user, only the first refusal
// is logged until half of the budget is free again; what names the calls in the log.
func NewBudget(what string, limits h2proxy.Limits, self uint32, limited *prometheus.CounterVec, log *slog.Logger) *h2proxy.Budget {
	return h2proxy.NewBudget(limits, self, func(uid uint32, why h2proxy.Reason, first bool) {
		limited.WithLabelValues(string(why)).Inc()
		if first {
			log.Warn(what+" "+why.Consequence(), "uid", uid, "reason", string(why))
		}
	})
}

// Bound returns a listener that closes connections of l beyond the bounds; socket names l in metrics and the log. If authorizer is not nil,
// l is the control socket, and users without a role have lower bounds.
func (c *Connections) Bound(l net.Listener, socket string, authorizer *access.Authorizer) net.Listener {
	return &boundedListener{l, socket, c, authorizer}
}

type boundedListener struct {
	net.Listener
	socket     string
	conns      *Connections
	authorizer *access.Authorizer // of the control socket; nil for other sockets
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if held := l.hold(conn); held != nil {
			l.conns.boundBuffer(held)
			if l.authorizer != nil && l.conns.budget != nil {
				held.brake = l.conns.budget.Brake(held.Conn, held.uid)
				held.Conn = held.brake
			}
			return held, nil
		}
		_ = conn.Close()
	}
}

// boundBuffer sets the size of the kernel's write buffer. A large buffer counts until the connection is closed.
func (c *Connections) boundBuffer(held *heldConn) {
	switch conn := held.Conn.(type) {
	case *net.UnixConn:
		size := largeBuffer
		if held.large = c.large.Grant(held.uid); held.large.Take(1) != nil {
			size = callerBuffer
		}
		_ = conn.SetWriteBuffer(size)
	case *net.TCPConn:
		_ = conn.SetWriteBuffer(nodeBuffer)
	}
}

// hold counts a connection, and returns nil if it exceeds a bound.
func (l *boundedListener) hold(conn net.Conn) *heldConn {
	c, stranger, held := l.conns, false, &heldConn{Conn: conn, uid: access.UnknownUser}
	pool := c.stable
	unixConn, local := conn.(*net.UnixConn)
	switch {
	case l.authorizer != nil:
		held.caller = l.authorizer.Identify(conn)
		held.uid = held.caller.UID()
		if pool, stranger = c.control, l.authorizer.IsStranger(held.caller); stranger {
			pool = c.strangers
		}
	case local:
		if uid, err := sock.UserOf(unixConn); err == nil {
			held.uid = uid
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
		held.expires = time.AfterFunc(strangerTime, func() { _ = conn.Close() })
	}
	return held
}

// addressUser returns a number for the callers at an address of another machine, which serves as their user. An IPv6 address counts by its
// first 64 bits.
func addressUser(addr net.Addr) uint32 {
	sum := fnv.New32a()
	if from, err := netip.ParseAddrPort(addr.String()); err == nil {
		bits := 64
		if from.Addr().Unmap().Is4() {
			bits = 32
		}
		prefix, _ := from.Addr().Unmap().WithZone("").Prefix(bits) // cannot fail: the address has at least that many bits
		_, _ = io.WriteString(sum, prefix.String())                // a hash never fails
	}
	return nonUser(sum.Sum32())
}

// nonUser returns a number that no user of the machine has: the numbers of users, including those of containers, are lower.
func nonUser(n uint32) uint32 { return n | 1<<31 }

// heldConn is a connection that counts until it is closed.
type heldConn struct {
	net.Conn
	uid         uint32
	caller      *access.Caller // nil if the server identifies the caller
	brake       *h2proxy.Brake // nil if the server delays reading by itself
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

// OpenFiles returns how many files this process may open.
func OpenFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the usual default
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // the type of Cur depends on the system
}
