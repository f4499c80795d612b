package daemon

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/quota"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// idle is what a client of HTTP/2 says that then says nothing any more.
const idle = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// hoard has a user hold connections without a call, and tells of each that the daemon closes.
func hoard(t *testing.T, closed chan<- struct{}, path string, uid, gid uint32, count int) {
	t.Helper()
	for range count {
		conn := dialAs(t, path, uid, gid)
		go func() {
			_, _ = io.WriteString(conn, idle)
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
}

func await(t *testing.T, closed <-chan struct{}, count int) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for n := range count {
		select {
		case <-closed:
		case <-deadline:
			t.Fatalf("%d idle connections were closed, want %d", n, count)
		}
	}
}

// TestIdleStrangers: a user without a role opens as many connections as he can, and keeps nobody from the control socket.
func TestIdleStrangers(t *testing.T) {
	l := newLab(t)
	const attempts, held = 1000, 16
	closed := make(chan struct{}, attempts)
	hoard(t, closed, l.config.ControlSocket, stranger, stranger, attempts)
	await(t, closed, attempts-held)
	for _, uid := range []uint32{0, reader} {
		if err := l.list(uid); err != nil {
			t.Errorf("user %d: %v", uid, err)
		}
	}
	if err := l.list(stranger + 1); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another stranger is told %v, want that he has no role", err)
	}
	told := slices.DeleteFunc(l.log.lines(), func(line string) bool { return !strings.Contains(line, "too many are open") })
	if want := fmt.Sprintf("socket=control uid=%d ofUser=16", stranger); len(told) != 1 || !strings.Contains(told[0], want) {
		t.Errorf("the log says of it %q, want one line with %q", told, want)
	}
	await(t, closed, held) // those that were kept
}

// list asks for the plugins as a user.
func (l *lab) list(uid uint32) error {
	l.t.Helper()
	return l.as(uid).Invoke(l.ctx(), patchbayv1connect.ControlServiceListPluginsProcedure, &patchbayv1.ListPluginsRequest{},
		&patchbayv1.ListPluginsResponse{})
}

// TestIdleCallersOfStableSockets: what one user holds, and what all hold, is bounded over all stable sockets. Root is not.
func TestIdleCallersOfStableSockets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as other users")
	}
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"socket", "reason"})
	b := newBed(t, func(d *dispense) {
		d.conns = newConnections(0, 64, refused, discard) // 8 of a user, 16 of all
	})
	if err := os.Chmod(b.tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	b.register("T", "one", b.serve("one"))
	b.register("T", "two", b.serve("two"))
	one, two := b.socket("T", "one", true), b.socket("T", "two", true)
	closed := make(chan struct{}, 100)
	hoard(t, closed, one, 1001, 0, 6)
	hoard(t, closed, two, 1001, 0, 5)
	await(t, closed, 3)
	for uid := uint32(1002); uid < 1003; uid++ {
		hoard(t, closed, one, uid, 0, 8)
	}
	hoard(t, closed, two, 1005, 0, 1)
	await(t, closed, 1)
	if user, total := count(refused, "user"), count(refused, "total"); user != 3 || total != 1 || len(closed) != 0 {
		t.Errorf("%v were refused for their user and %v in total, want 3 and 1; %d others were closed", user, total, len(closed))
	}
	if got := b.ask(b.client("T", "one")); got != "one" {
		t.Errorf("root is answered by %q", got)
	}
}

func count(refused *prometheus.CounterVec, reason string) float64 {
	return testutil.ToFloat64(refused.WithLabelValues("stable", reason))
}

// TestPoolsAreApart: however many users fill the stable sockets, those with a role can connect to the control socket.
func TestPoolsAreApart(t *testing.T) {
	c := newConnections(0, 1<<20, nil, discard)
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

// TestManySubscribers: 10,000 subscribers of some users, each with a connection, keep nobody out where as many files may be open as the unit
// says.
func TestManySubscribers(t *testing.T) {
	const users, each = 10, 1000
	c := newConnections(0, 64<<10, nil, discard)
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

// TestManyNodes: 5,000 nodes can call one that may open as many files as the unit says, and keep nobody on it from his plugins.
func TestManyNodes(t *testing.T) {
	const nodes, files = 5000, 64 << 10
	c := newConnections(0, files, nil, discard)
	if most := c.nodes.Limits().Total; most < nodes {
		t.Errorf("%d nodes may connect", most)
	}
	budget := newBudget("calls", nodeLimits(files), 0, nil, discard)
	for i := range nodes {
		if _, err := budget.Begin(notAUser(uint32(i))); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if nodeLimits(files).UserCalls < fleetStreams {
		t.Error("a node that does what it is told is refused calls")
	}
	for files := 64; files < 1<<20; files *= 2 { // half of an eighth is left for root
		c := newConnections(0, files, nil, discard)
		sum := 3*boundPlugins(reconciler.Bounds{}, files).TotalPlugins + callLimits(files).Leaving + nodeLimits(files).Leaving
		for _, p := range []*quota.Pool{c.control, c.stable, c.nodes} {
			sum += p.Limits().Total
		}
		if left := files - sum; left < files/16 {
			t.Errorf("of %d files %d are left", files, left)
		}
	}
}

// TestConnectionsOfNodes: what one address has open for calls from other nodes is bounded, before anybody has shown a certificate.
func TestConnectionsOfNodes(t *testing.T) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"socket", "reason"})
	c := newConnections(0, 256, refused, discard) // 4 of an address, 8 of all
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := c.limit(l, "fleet", nil)
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

// TestLargeBuffers: so many connections of a user have a large buffer, and others again when one of those is closed; each counts once.
func TestLargeBuffers(t *testing.T) {
	c := newConnections(0, 1<<20, nil, discard)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bounded := c.limit(l, "stable", nil)
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
