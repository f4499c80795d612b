package limits

import (
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/quota"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestPoolsAreApart checks that users with a role can connect to the control socket while others fill the stable sockets.
func TestPoolsAreApart(t *testing.T) {
	c := NewConnections(0, 1<<20, nil, nil, slog.New(slog.DiscardHandler))
	for uid := range uint32(8) {
		for range maxUserConns {
			c.stable.Take(uid, 1)
		}
	}
	if got := c.stable.Sum(); got != maxStableConns {
		t.Errorf("%d connections are open, want %d", got, maxStableConns)
	}
	if c.control.Take(9, 1) != nil {
		t.Error("another user is kept from the control socket")
	}
}

// TestManySubscribers checks that 10,000 subscribers of some users, each with a connection, do not block others with the limit of open
// files in the unit.
func TestManySubscribers(t *testing.T) {
	const users, each = 10, 1000
	c := NewConnections(0, 64<<10, nil, nil, slog.New(slog.DiscardHandler))
	for uid := range uint32(users + 1) {
		for range each {
			if refusal := c.control.Take(uid+1, 1); refusal != nil && uid < users {
				t.Fatalf("a connection of user %d is refused: %+v", uid+1, refusal)
			}
		}
	}
	if most := c.control.Limits().Total; c.control.Sum() != most {
		t.Errorf("%d are open, want no more than %d", c.control.Sum(), most)
	}
}

// TestManyNodes checks that 5,000 nodes can call one with the limit of open files in the unit, and do not block its users from their
// plugins.
func TestManyNodes(t *testing.T) {
	const nodes, files = 5000, 64 << 10
	c := NewConnections(0, files, nil, nil, slog.New(slog.DiscardHandler))
	if most := c.nodes.Limits().Total; most < nodes {
		t.Errorf("%d nodes may connect", most)
	}
	budget := NewBudget("calls", NodeCalls(files), 0, nil, slog.New(slog.DiscardHandler))
	for i := range nodes {
		if _, err := budget.Begin(nonUser(uint32(i))); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	for files := 64; files < 1<<20; files *= 2 { // at least half of an eighth is left for root
		c := NewConnections(0, files, nil, nil, slog.New(slog.DiscardHandler))
		sum := 3*Plugins(plugin.Bounds{}, files).TotalPlugins + Calls(files).Leaving + NodeCalls(files).Leaving
		for _, p := range []*quota.Pool{c.control, c.stable, c.nodes} {
			sum += p.Limits().Total
		}
		if left := files - sum; left < files/16 {
			t.Errorf("of %d files %d are left", files, left)
		}
	}
}

// TestConnectionsOfNodes checks the bounds for connections of one address for calls from other nodes, before a certificate is presented.
func TestConnectionsOfNodes(t *testing.T) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"socket", "reason"})
	c := NewConnections(0, 256, nil, refused, slog.New(slog.DiscardHandler)) // 4 per address, 8 in total
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := c.Bound(l, "fleet", nil)
	accepted := make(chan net.Conn, 100)
	go func() {
		defer close(accepted)
		for {
			conn, err := bounded.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	from := func(address string, count int) {
		t.Helper()
		for range count {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
			conn, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}
	from("127.0.0.1", 6)
	from("127.0.0.2", 4)
	from("127.0.0.3", 1)
	until(t, "three were refused", func() bool {
		return testutil.ToFloat64(refused.WithLabelValues("fleet", "user")) == 2 && testutil.ToFloat64(refused.WithLabelValues("fleet", "total")) == 1
	})
	first := <-accepted
	_ = first.Close()
	_ = first.Close() // counts once
	if got := c.nodes.Sum(); got != 7 {
		t.Errorf("%d connections are counted, want 7", got)
	}
	_ = l.Close()
	for conn := range accepted {
		_ = conn.Close()
	}
	if got := c.nodes.Sum(); got != 0 {
		t.Errorf("%d connections are counted after the last one was closed", got)
	}
}

func TestAddressUser(t *testing.T) {
	of := func(text string) uint32 { return addressUser(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text))) }
	for _, same := range [][2]string{{"192.0.2.1:1", "192.0.2.1:2"}, {"192.0.2.1:1", "[::ffff:192.0.2.1]:1"}, {"[2001:db8::1]:1", "[2001:db8::2]:1"}} {
		if of(same[0]) != of(same[1]) {
			t.Errorf("%s and %s are not one caller", same[0], same[1])
		}
	}
	for _, others := range [][2]string{{"192.0.2.1:1", "192.0.2.2:1"}, {"[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1"}} {
		if of(others[0]) == of(others[1]) {
			t.Errorf("%s and %s are one caller", others[0], others[1])
		}
	}
	if of("192.0.2.1:1") < 1<<31 {
		t.Error("an address is a user")
	}
}

// TestLargeBuffers checks how many connections of a user have a large buffer, that closing one makes room for another, and that each counts
// once.
func TestLargeBuffers(t *testing.T) {
	c := NewConnections(0, 1<<20, nil, nil, slog.New(slog.DiscardHandler))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bounded := c.Bound(l, "stable", nil)
	accepted := func() net.Conn {
		conn, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		held, err := bounded.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = held.Close() })
		return held
	}
	isLarge := func(conn net.Conn) bool {
		size := 0
		if err := sock.Control(conn.(*heldConn).Conn.(*net.UnixConn), func(fd int) (err error) {
			size, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return size > 2*callerBuffer
	}
	var conns []net.Conn
	for n := range maxUserLarge + 2 {
		conns = append(conns, accepted())
		if got, want := isLarge(conns[n]), n < maxUserLarge; got != want {
			t.Fatalf("connection %d has a large buffer: %v, want %v", n, got, want)
		}
	}
	_ = conns[0].Close()
	_ = conns[0].Close()
	_ = conns[maxUserLarge].Close()
	if !isLarge(accepted()) || isLarge(accepted()) {
		t.Error("want one more large buffer after one was given back")
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
