package stablesocket

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/usertest"
)

// TestCallsAtStableSocketsAreBounded: what one user has in progress is bounded over all stable sockets, counted and logged once. Others, and
// root, go on.
func TestCallsAtStableSocketsAreBounded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as other users")
	}
	limited := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limited"}, []string{"reason"})
	log := &lockedText{}
	b := newBed(t, func(s *Sockets) {
		bounds := h2proxy.DefaultLimits
		bounds.UserCalls, bounds.Calls = 2, 3
		s.Budget = limits.NewBudget("calls of plugins", bounds, 0, limited, slog.New(slog.NewTextHandler(log, nil)))
	})
	if err := os.Chmod(b.tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	b.register("T", "one", b.serve("one"))
	b.register("T", "two", b.serve("two"))
	one, two := b.socket("T", "one", true), b.socket("T", "two", true)
	call := func(uid uint32, path string) (codes.Code, context.CancelFunc) {
		ctx, cancel := context.WithCancel(b.ctx())
		conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return usertest.Dial(t, path, uid, 0), nil }))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		s, err := testpb.NewTestServiceClient(conn).FullDuplexCall(ctx)
		if err == nil {
			_ = s.Send(&testpb.StreamingOutputCallRequest{}) // of a call that was refused already, Recv says why
			_, err = s.Recv()
		}
		return status.Code(err), cancel
	}
	_, end := call(1001, one)
	for i, test := range []struct {
		uid  uint32
		path string
		want codes.Code
	}{
		{1001, two, codes.OK}, {1001, two, codes.ResourceExhausted}, {1001, one, codes.ResourceExhausted}, {1002, one, codes.OK},
		{1003, two, codes.ResourceExhausted}, {0, one, codes.OK}, {0, two, codes.OK}, {0, two, codes.OK},
	} {
		if code, _ := call(test.uid, test.path); code != test.want {
			t.Errorf("call %d: %v, want %v", i, code, test.want)
		}
	}
	user, total := testutil.ToFloat64(limited.WithLabelValues("userCalls")), testutil.ToFloat64(limited.WithLabelValues("calls"))
	if user != 2 || total != 1 {
		t.Errorf("%v calls were refused for their user and %v in total, want 2 and 1", user, total)
	}
	if n := strings.Count(log.String(), "uid=1001"); n != 1 {
		t.Errorf("%d lines of the log say so:\n%s", n, log)
	}
	end()
	until(t, "a call may begin when another has ended", func() bool {
		code, _ := call(1003, two)
		return code == codes.OK
	})
}

// lockedText is a text to which many write.
type lockedText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestIdleCallersOfStableSockets: what one user holds, and what all hold, is bounded over all stable sockets. Root is not.
func TestIdleCallersOfStableSockets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as other users")
	}
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"socket", "reason"})
	b := newBed(t, func(s *Sockets) {
		s.Conns = limits.NewConnections(0, 64, nil, refused, discard) // 8 of a user, 16 of all
	})
	if err := os.Chmod(b.tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	b.register("T", "one", b.serve("one"))
	b.register("T", "two", b.serve("two"))
	one, two := b.socket("T", "one", true), b.socket("T", "two", true)
	closed := make(chan struct{}, 100)
	usertest.HoldIdle(t, closed, one, 1001, 0, 6)
	usertest.HoldIdle(t, closed, two, 1001, 0, 5)
	usertest.AwaitClosed(t, closed, 3)
	for uid := uint32(1002); uid < 1003; uid++ {
		usertest.HoldIdle(t, closed, one, uid, 0, 8)
	}
	usertest.HoldIdle(t, closed, two, 1005, 0, 1)
	usertest.AwaitClosed(t, closed, 1)
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
