package daemon

import (
	"log/slog"
	"math"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// maxUserConns and maxConns bound the open connections at the control socket, and those at the stable sockets: of each user, and of all
	// but root and the daemon's user. Where few files may be open, the bounds are an eighth of those for a user, a quarter in all at the
	// control socket and a half at the stable sockets: the rest is left for plugins and root.
	maxUserConns, maxConns = 1024, 4096
	// maxStrangerConns and maxStrangersConns bound those at the control socket of users without a role, who are only told that they have none.
	maxStrangerConns, maxStrangersConns = 16, 64
)

// unknownUser counts callers of whom the system says nothing. No user has this number.
const unknownUser = math.MaxUint32

// connections bounds how many connections callers may hold at the daemon's sockets, which cost a descriptor each even if they are idle.
// What is beyond a bound is closed at once.
type connections struct {
	self    uint32 // the user of the daemon
	log     *slog.Logger
	refused *prometheus.CounterVec

	mu sync.Mutex
	// They are apart: whoever may call plugins keeps nobody from the control socket.
	control, strangers, stable pool
}

func newConnections(self uint32, files int, refused *prometheus.CounterVec, log *slog.Logger) *connections {
	return &connections{
		self: self, log: log, refused: refused,
		control:   newPool(min(maxUserConns, files/8), min(maxConns, files/4)),
		strangers: newPool(maxStrangerConns, maxStrangersConns),
		stable:    newPool(min(maxUserConns, files/8), min(maxConns, files/2)),
	}
}

// pool counts the open connections of users, and bounds those of each and of all.
type pool struct {
	perUser, total int

	open map[uint32]int
	sum  int
	// told has the users who were logged as having too many, until they have half as many; full says so of all.
	told map[uint32]bool
	full bool
}

func newPool(perUser, total int) pool {
	return pool{perUser: perUser, total: total, open: map[uint32]int{}, told: map[uint32]bool{}}
}

// take takes one connection of a user in. If it may not, reason says why; first, whether that is news.
func (p *pool) take(uid uint32) (reason string, first bool) {
	switch {
	case p.open[uid] >= p.perUser:
		first = !p.told[uid]
		p.told[uid] = true
		return "user", first
	case p.sum >= p.total:
		first = !p.full
		p.full = true
		return "total", first
	}
	p.open[uid]++
	p.sum++
	return "", false
}

func (p *pool) give(uid uint32) {
	p.sum--
	if p.sum <= p.total/2 {
		p.full = false
	}
	if p.open[uid]--; p.open[uid] <= p.perUser/2 {
		delete(p.told, uid)
	}
	if p.open[uid] == 0 {
		delete(p.open, uid)
	}
}

// limit returns a listener that hands out the connections of l which are within the bounds. With a guard, users without a role are
// strangers.
func (c *connections) limit(l net.Listener, socket string, g *guard) net.Listener {
	return &boundedListener{l, socket, c, g}
}

// boundedListener is a [net.Listener].
type boundedListener struct {
	net.Listener
	socket string
	conns  *connections
	guard  *guard // nil if everybody who can connect may call
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if held := l.hold(conn); held != nil {
			return held, nil
		}
		_ = conn.Close() // nothing was said
	}
}

// hold takes a connection in; nil if it is beyond a bound.
func (l *boundedListener) hold(conn net.Conn) net.Conn {
	uid, stranger, who := uint32(unknownUser), false, (*caller)(nil)
	if l.guard != nil {
		who = l.guard.identify(conn)
		stranger = l.guard.isStranger(who)
		if who.unknown == nil {
			uid = who.peer.UID
		}
	} else if unixConn, ok := conn.(*net.UnixConn); ok {
		if peer, err := sock.PeerOf(unixConn); err == nil {
			uid = peer.UID
		}
	}
	c := l.conns
	if uid == 0 || uid == c.self {
		return &heldConn{Conn: conn, caller: who, release: func() {}}
	}
	p := &c.control
	switch {
	case stranger:
		p = &c.strangers
	case l.guard == nil:
		p = &c.stable
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if reason, first := p.take(uid); reason != "" {
		c.refused.WithLabelValues(l.socket, reason).Inc()
		if first {
			c.log.Warn("connections are closed at once: too many are open; end what holds them",
				"socket", l.socket, "uid", uid, "ofUser", p.open[uid], "mostOfUser", p.perUser, "ofAll", p.sum, "mostOfAll", p.total)
		}
		return nil
	}
	return &heldConn{Conn: conn, caller: who, release: sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		p.give(uid)
	})}
}

// heldConn is a connection that counts until it is closed.
type heldConn struct {
	net.Conn
	caller  *caller // nil if nobody looked
	release func()
}

func (c *heldConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
