package controlapi

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/usertest"
)

// boundedControl serves a control socket with a budget for a user of 1 MiB, one call and two requests. User 65534 has the role operate.
func boundedControl(t *testing.T) (b *bed, path string, budget *h2proxy.Budget, limited *prometheus.CounterVec) {
	t.Helper()
	listener, path := usertest.Listen(t, 0)
	b = newBed(t)
	limited = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limited"}, []string{"reason"})
	budget = limits.NewBudget("calls of plugins", h2proxy.Limits{UserBytes: 1 << 20, Bytes: 4 << 20, UserCalls: 1, Calls: 4}, 0, limited, discard)
	g := testGuard(path)
	g.Replace(policyFor(config.Roles{Operate: config.Members{Users: []string{"65534"}}}))
	s := (&API{Authorizer: g, Logger: discard, Connector: b.registry, Calls: budget,
		Requests: limits.NewBudget("requests", h2proxy.Limits{UserCalls: 2, Calls: 4}, 0, limited, discard),
	}).Serve(listener, func() { t.Error("the server failed") })
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if n := budget.Bytes(); n != 0 {
			t.Errorf("%d bytes are still counted", n)
		}
	})
	return b, path, budget, limited
}

func asNobody(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return usertest.Dial(t, path, 65534, 65534), nil }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestCallsAtTheControlSocketAreBounded checks that calls count to their user in the budget of all calls.
func TestCallsAtTheControlSocketAreBounded(t *testing.T) {
	b, path, _, limited := boundedControl(t)
	one := b.serve("one")
	b.register("T", "n", one)
	c := testpb.NewTestServiceClient(asNobody(t, path))
	ctx, cancel := context.WithCancel(grpcmetadata.AppendToOutgoingContext(b.ctx(), proxy.Route("T", "n")...))
	if _, err := c.FullDuplexCall(ctx); err != nil {
		t.Fatal(err)
	}
	<-one.calls
	routed := grpcmetadata.AppendToOutgoingContext(b.ctx(), proxy.Route("T", "n")...)
	if _, err := c.UnaryCall(routed, &testpb.SimpleRequest{}); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "call again later") {
		t.Errorf("another call of the user: %v", err)
	}
	if n := testutil.ToFloat64(limited.WithLabelValues("userCalls")); n != 1 {
		t.Errorf("%v calls were counted as refused", n)
	}
	cancel()
	until(t, "a call may begin when the other has ended", func() bool {
		_, err := c.UnaryCall(routed, &testpb.SimpleRequest{})
		return err == nil
	})
}

// TestRequestsCountWhatTheyHold checks that a request for which the budget has no room is refused with a remedy, and then no longer counts.
func TestRequestsCountWhatTheyHold(t *testing.T) {
	budget := h2proxy.NewBudget(h2proxy.Limits{UserBytes: 16 << 10, Bytes: 64 << 10}, 0, func(uint32, h2proxy.Reason, bool) {})
	held := budget.Hold(1000)
	for size, want := range map[int]int{freeRequest: 0, freeRequest + 10: 10} {
		body := &countedBody{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, size))), held: held, free: freeRequest}
		if _, err := io.ReadAll(body); err != nil || budget.Bytes() != want {
			t.Errorf("of %d bytes %d are counted, %v", size, budget.Bytes(), err)
		}
		held.Give()
	}
	body := &countedBody{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, 64<<10))), held: held, free: freeRequest}
	_, err := io.ReadAll(body)
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "call again later") {
		t.Errorf("a request for which there is no room: %v", err)
	}
	if held.Give(); budget.Bytes() != 0 {
		t.Errorf("%d bytes are still counted", budget.Bytes())
	}
}

// TestRequestsAreBounded checks that the requests of one user are bounded, even invalid ones, and that other users and root are not
// affected.
func TestRequestsAreBounded(t *testing.T) {
	limited := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limited"}, []string{"reason"})
	budget := limits.NewBudget("requests", h2proxy.Limits{UserCalls: 2, Calls: 3}, 0, limited, discard)
	began, release := make(chan struct{}), make(chan struct{})
	handler := service{&API{Requests: budget, Calls: budget}}.boundRequests(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-release
	}))
	var open sync.WaitGroup
	for i, test := range []struct {
		uid  uint32
		want bool
	}{{1001, true}, {1001, true}, {1001, false}, {1002, true}, {1003, false}, {0, true}} {
		ctx := access.WithCaller(t.Context(), access.NewCaller(sock.Credentials{UID: test.uid}))
		request := httptest.NewRequestWithContext(ctx, http.MethodPost, patchbayv1connect.ControlServiceGetVersionProcedure, http.NoBody)
		request.Header.Set("Content-Type", "application/grpc")
		answer, answered := httptest.NewRecorder(), make(chan struct{})
		open.Go(func() {
			defer close(answered)
			handler.ServeHTTP(answer, request)
		})
		select {
		case <-began:
			if !test.want {
				t.Errorf("request %d begins", i)
			}
		case <-answered:
			if got := answer.Result().Trailer.Get("Grpc-Status"); test.want || got != "8" {
				t.Errorf("request %d is answered with status %q", i, got)
			}
		}
	}
	close(release)
	open.Wait()
	user, total := testutil.ToFloat64(limited.WithLabelValues("userCalls")), testutil.ToFloat64(limited.WithLabelValues("calls"))
	if user != 1 || total != 1 {
		t.Errorf("%v were refused for their user and %v in total, want one each", user, total)
	}
}
