package h2proxy

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// one is a listener with one connection.
type one struct {
	net.Listener

	conns chan net.Conn
}

func (l one) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l one) Close() error { return nil }

// TestPipe: on one connection within a program, what waits for a call counts to the caller at both ends, so no caller fills it for others.
func TestPipe(t *testing.T) {
	t.Parallel()
	const self, size = 1, 10 << 10
	within := NewBudget(Limits{UserBytes: 2 * MaxMetadata, Bytes: 4 * MaxMetadata, UserCalls: 10, Calls: 10}, self, func(uint32, Reason, bool) {})
	budget := NewBudget(Limits{UserBytes: 5 * size, Bytes: 1 << 20}, self, func(uint32, Reason, bool) {})
	callers := make(chan uint32, 3)
	s := NewServer(ServerConfig{Budget: within, Timeout: patience, Handle: func(caller grpc.ServerStream) error {
		of := caller.(interface {
			UID() uint32
			Budget() *Budget
		})
		if of.Budget() != budget {
			t.Error("the call has the budget of the connection")
		}
		callers <- of.UID()
		return hang(caller)
	}})
	l := one{conns: make(chan net.Conn, 1)}
	go func() { _ = s.Serve(l) }()
	c := NewClient(ClientConfig{Timeout: patience, Idle: patience, Pause: patience, Dial: func(context.Context) (net.Conn, error) {
		ours, theirs := Pipe()
		l.conns <- theirs
		return ours, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ctx = metadata.AppendToOutgoingContext(ctx, "large", strings.Repeat("x", size))
	for _, uid := range []uint32{7, 8} {
		if _, err := c.NewStream(ctx, nil, "/a.B/C", CallOption{Budget: budget, UID: uid}); err != nil {
			t.Fatal(err)
		}
		if got := <-callers; got != uid {
			t.Errorf("user %d calls as %d", uid, got)
		}
		if n := budget.bytes.Held(uid); n < size {
			t.Errorf("%d bytes count to user %d", n, uid)
		}
	}
	if n := within.Bytes(); n != 0 {
		t.Errorf("%d bytes count to all", n)
	}
	cancel()
	until(t, "nothing counts", func() bool { return budget.Bytes() == 0 })
	_ = c.Close()
	close(l.conns)
	s.Drain()
}
