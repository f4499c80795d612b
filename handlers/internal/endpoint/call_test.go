package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
)

func TestCall(t *testing.T) {
	method := func(ctx context.Context, request string, _ ...grpc.CallOption) (string, error) {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Minute {
			t.Errorf("the deadline is %v, %v", deadline, ok)
		}
		if request == "" {
			return "", status.Error(codes.NotFound, "\x1bno")
		}
		return request + "!", nil
	}
	if answer, err := endpoint.Call(t.Context(), time.Minute, "Get", method, "a"); answer != "a!" || err != nil {
		t.Errorf("got %q, %v", answer, err)
	}
	_, err := endpoint.Call(t.Context(), time.Minute, "Get", method, "")
	if err == nil || err.Error() != `Get: NotFound: "\x1bno"` || status.Code(fmt.Errorf("what: %w", err)) != codes.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestCallErrorMeansNotYet(t *testing.T) {
	for code := codes.OK + 1; code <= codes.Unauthenticated; code++ {
		want := false
		switch code { //nolint:exhaustive // the others are final
		case codes.Canceled, codes.DeadlineExceeded, codes.FailedPrecondition, codes.Unavailable, codes.Aborted:
			want = true
		}
		if got := errors.Is(endpoint.CallError("Get", status.Error(code, "why")), cache.ErrRetry); got != want {
			t.Errorf("%v: got %v, want %v", code, got, want)
		}
	}
}

// TestProbeIsJudged: what a plugin names is looked at through the dialer that judges it, and by no other way.
func TestProbeIsJudged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := endpoint.Probe(t.Context(), path); err != nil {
		t.Errorf("without a judge: %v", err)
	}
	refused := errors.New("not yours")
	ctx := cache.WithEndpointDialer(t.Context(), func(context.Context, string) (net.Conn, error) { return nil, refused })
	if err := endpoint.Probe(ctx, path); !errors.Is(err, refused) {
		t.Errorf("refused by the judge: %v", err)
	}
}

// TestCallsAreCounted: a plugin that works on a call of a handler is not taken for one that hangs.
func TestCallsAreCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	pending := pendingcalls.At(path)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		if pending.Mark(); !pending.Marked() {
			t.Error("the call is not counted")
		}
		return status.Error(codes.NotFound, "no")
	}))
	go server.Serve(listener)
	defer server.Stop()
	conn, err := endpoint.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Invoke(t.Context(), "/s/m", &emptypb.Empty{}, &emptypb.Empty{})
	if status.Code(err) != codes.NotFound || pending.Marked() || pending.Answers() != 1 {
		t.Errorf("after %v: %d answers, and one waits: %t", err, pending.Answers(), pending.Marked())
	}
}

func TestConnClosesWithItsLastUser(t *testing.T) {
	conn, err := endpoint.Dial(t.Context(), "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	closed := func() bool { return conn.GetState() == connectivity.Shutdown }
	conn.Users.Add(2)
	conn.Users.Done()
	retired := make(chan struct{})
	go func() {
		defer close(retired)
		conn.Retire()
	}()
	select {
	case <-retired:
		t.Error("retired while it is in use")
	case <-time.After(10 * time.Millisecond):
	}
	if closed() {
		t.Error("closed while it is in use")
	}
	conn.Users.Done()
	<-retired
	if !closed() {
		t.Error("not closed after the last use")
	}
	conn.Retire()
}

// usual is a connection of which the deadlines are looked at.
type usual struct {
	grpc.ClientConnInterface
	deadline time.Time
}

func (u *usual) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	u.deadline, _ = ctx.Deadline()
	return nil
}

func TestBounded(t *testing.T) {
	minute, none := time.Minute, time.Duration(0)
	for _, c := range []struct {
		configured *time.Duration
		usual      time.Duration
		bounded    bool
	}{{nil, 0, false}, {&none, 0, false}, {&minute, 0, true}, {nil, time.Minute, true}, {&minute, time.Hour, true}} {
		conn := new(usual)
		bounded := endpoint.Bounded(conn, func() time.Duration { return endpoint.Timeout(c.configured, c.usual) })
		if err := bounded.Invoke(t.Context(), "/s/m", nil, nil); err != nil {
			t.Fatal(err)
		}
		if conn.deadline.IsZero() == c.bounded || c.bounded && time.Until(conn.deadline) > time.Minute {
			t.Errorf("%+v: the deadline is %v", c, conn.deadline)
		}
	}
}
