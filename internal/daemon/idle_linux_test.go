package daemon

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/daemon/stablesocket"
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
	b := newBed(t, func(c *stablesocket.Config) {
		c.Conns = limits.NewConnections(0, 64, nil, refused, discard) // 8 of a user, 16 of all
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
	if user, total := refusals(refused, "user"), refusals(refused, "total"); user != 3 || total != 1 || len(closed) != 0 {
		t.Errorf("%v were refused for their user and %v in total, want 3 and 1; %d others were closed", user, total, len(closed))
	}
	if got := b.ask(b.client("T", "one")); got != "one" {
		t.Errorf("root is answered by %q", got)
	}
}

func refusals(refused *prometheus.CounterVec, reason string) float64 {
	return testutil.ToFloat64(refused.WithLabelValues("stable", reason))
}
