// Package limits bounds what callers of the daemon may hold, by the number of files that the daemon may open: connections at each of its
// sockets, calls of plugins, and plugins.
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
	// maxUserConns bounds the open connections at the control socket, and those at the stable sockets, of each user; maxControlConns, which
	// 10,000 subscribers do not meet, and maxStableConns those of all but root and the daemon's user. Where few files may be open, the
	// bounds are an eighth of those for a user, and a quarter in all at the control socket and at the stable sockets each. Three eighths
	// are for plugins, see [Plugins], and a thirty-second for connections to plugins that only have calls to end; of the rest, callers on
	// other nodes leave two thirds at least for root.
	maxUserConns, maxControlConns, maxStableConns = 1024, 10 << 10, 4096
	// maxAddressConns and maxNodeConns bound the connections for calls from other nodes, of each address and of all. Where few files may be
	// open, the bounds are a sixty-fourth of them and what the others leave but for an eighth, at least a thirty-second.
	maxAddressConns, maxNodeConns = 256, 16 << 10
	// maxStrangerConns and maxStrangersConns bound those at the control socket of users without a role, who are only told that they have
	// none.
	maxStrangerConns, maxStrangersConns = 16, 64
	// strangerTime bounds a connection of a user without a role: it is only needed for the refusal.
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

// Connections bounds how many connections each user may hold at the daemon's sockets, and all users together: each costs a descriptor, even
// if it is idle. Those beyond a bound are closed immediately.
type Connections struct {
	self    uint32 // the user of the daemon
	log     *slog.Logger
	refused *prometheus.CounterVec
	// budget slows down control connections on which too many calls are canceled; nil for none.
	budget *h2proxy.Budget

	// They are separate, so that callers of plugins do not block the control socket.
	control, strangers, stable, nodes *quota.Pool
	// large counts the connections with a large buffer, those of root and the daemon's user too.
	large *quota.Pool
}

// NewConnections returns the bounds for a daemon that runs as the user self and may open a number of files.
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

// maxNodes returns how many connections there may be for calls from other nodes, if so many files may be open.
func maxNodes(files int) int {
	others := min(maxControlConns, files/4) + min(maxStableConns, files/4) + 3*(files/8) + files/32 + files/8
	return min(maxNodeConns, max(files/32, files-others, 1))
}

// NodeCalls returns the bounds of the calls from other nodes.
func NodeCalls(files int) h2proxy.Limits {
	ofNode := h2proxy.DefaultLimits.Cancels.All // its users share a connection
	return h2proxy.Limits{
		UserBytes: 16 << 20, Bytes: 48 << 20, UserCalls: 2048, Calls: 8192, Leaving: leaving(files),
		Cancels: h2proxy.CancelRates{Conn: ofNode, User: ofNode, All: 2 * ofNode},
	}
}

// Plugins returns b with bounds for the number of plugins of each user, and of all users except root and the daemon's: a plugin takes a
// descriptor for its connection and one for its stable socket.
func Plugins(b plugin.Bounds, files int) plugin.Bounds {
	b.TotalPlugins = max(files/8, 1)
	b.UserPlugins = max(b.TotalPlugins/4*3, 1)
	return b
}

// Calls returns the bounds of the calls of plugins by callers on this node.
func Calls(files int) h2proxy.Limits {
	l := h2proxy.DefaultLimits
	l.Leaving = leaving(files)
	return l
}

// leaving returns how many connections to plugins may exist only for calls that are ending, for callers on this node, and for others.
func leaving(files int) int { return max(files/64, 1) }

// NewBudget returns a budget for calls and their bytes in memory. A refusal is counted, and logged once for each user until half of the
// budget is free again; what names the calls in the log.
func NewBudget(what string, limits h2proxy.Limits, self uint32, limited *prometheus.CounterVec, log *slog.Logger) *h2proxy.Budget {
	return h2proxy.NewBudget(limits, self, func(uid uint32, why h2proxy.Reason, first bool) {
		limited.WithLabelValues(string(why)).Inc()
		if first {
			log.Warn(what+" "+why.Consequence(), "uid", uid, "reason", string(why))
		}
	})
}

// Bound returns a listener with the connections of l that are within the bounds; socket names it in metrics and the log. The authorizer is
// that of the control socket, nil for other sockets: users without a role have bounds of their own.
func (c *Connections) Bound(l net.Listener, socket string, authorizer *access.Authorizer) net.Listener {
	return &boundedListener{l, socket, c, authorizer}
}

type boundedListener struct {
	net.Listener
	socket     string
	conns      *Connections
	authorizer *access.Authorizer // nil if every process that can connect may call, or authenticates later
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

// boundBuffer bounds the kernel's write buffer for a caller.
func (c *Connections) boundBuffer(held *heldConn) {
	switch conn := held.Conn.(type) {
	case *net.UnixConn:
		_ = conn.SetWriteBuffer(c.bufferOf(held))
	case *net.TCPConn:
		_ = conn.SetWriteBuffer(nodeBuffer)
	}
}

// bufferOf returns the size of the buffer of a caller on this machine, which counts until the connection is closed.
func (c *Connections) bufferOf(held *heldConn) int {
	held.large = c.large.Grant(held.uid)
	if held.large.Take(1) != nil {
		return callerBuffer
	}
	return largeBuffer
}

// hold counts a connection; nil if it is beyond a bound.
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
		held.expires = time.AfterFunc(strangerTime, func() { _ = conn.Close() })
	}
	return held
}

// addressUser returns a number that stands for the callers at an address of another machine. An IPv6 address counts by its first 64 bits.
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
	return NonUser(sum.Sum32())
}

// NonUser returns a number that no user of the machine has: those of users, including those of containers, are lower.
func NonUser(n uint32) uint32 { return n | 1<<31 }

// heldConn is a connection that counts until it is closed.
type heldConn struct {
	net.Conn
	uid         uint32
	caller      *access.Caller // nil if the server identifies it
	brake       *h2proxy.Brake // nil if the server pauses by itself
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
		return 1024 // the least that systems give
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // its type depends on the system
}
